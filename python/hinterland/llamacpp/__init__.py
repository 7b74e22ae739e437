"""llama-servers that use prompts which another one has computed: a program in front of each.

    python -m hinterland.llamacpp -- llama-server -m model.gguf --port 8080

The guide is docs/guides/llamacpp.md.
"""
