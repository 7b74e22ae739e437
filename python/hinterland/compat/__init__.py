"""Contracts of other projects over KV blocks: what speaks to them works with Hinterland.

    hinterland.compat.mooncake   the store class of Mooncake
    hinterland.compat.lmcache    a native plug-in of LMCache
    hinterland.compat.sglang     a storage back end of SGLang's HiCache
"""
