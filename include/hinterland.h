/* Hinterland for C: one pool of memory over many nodes (libhinterland).
 *
 * A program talks to the node of its own host over a unix socket. Inside the rack, reads and writes are loads and stores;
 * to another rack, one request each; a node is asked only for what is not known yet.
 *
 *     hl_pool *pool;
 *     if (hl_open(NULL, &pool) != 0) { fprintf(stderr, "%s\n", hl_last_error()); exit(1); }
 *
 * - Every function that returns an int returns 0, or a negative errno value; then hl_last_error() has the words.
 * - A pool may be used by many threads at once, but for hl_close.
 * - Locks and allocations belong to the pool that made them, not to a thread: threads that want to exclude each other open
 *   a pool each.
 * - After fork() the child opens its own pool; every call on the parent's is refused with -ENOTCONN. What is mapped can be
 *   read in the child.
 * - When a program ends, in whatever way, the node takes back its locks, allocations and unfinished puts.
 *
 * Link with -lhinterland; with libhinterland.a also with -lpthread -ldl -lm -lgcc_s.
 */
#ifndef HINTERLAND_H
#define HINTERLAND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- pools ------------------------------------------------------------------------------------------------- */

/* An open pool. */
typedef struct hl_pool hl_pool;

/* An address in the pool, the same on every node; 0 is nowhere. */
typedef uint64_t hl_address;

/* Opens a pool through the node that listens on `socket`. NULL: the socket that HINTERLAND_SOCKET names, else
 * hinterland/node.sock below XDG_RUNTIME_DIR, else below /run. -ENOTCONN: nobody listens. */
int hl_open(const char *socket, hl_pool **pool);

/* Closes a pool: what it mapped is unmapped, what it locked or allocated (but hl_alloc_kept) is free. NULL is allowed. No
 * other thread may be using the pool. A handle that is still open is of no use from then on; only for a guard that is still
 * locked all of it waits until hl_guard_unlock. Both are still to be ended. */
int hl_close(hl_pool *pool);

/* What went wrong in the last call of this thread that failed, with a hint; "" if none did. Never NULL; valid until the
 * next call of this thread that fails. */
const char *hl_last_error(void);

/* The version of the library, "MAJOR.MINOR.PATCH". */
const char *hl_version(void);

/* --- memory by address ------------------------------------------------------------------------------------- */

/* Allocates memory of this rack, aligned to 16 bytes, freed at the latest when the pool is closed. What it holds is
 * undefined. All allocations of one node have 64 MiB together; what is larger is a region. -ENOSPC: no room. */
int hl_alloc(hl_pool *pool, uint64_t bytes, hl_address *address);

/* The same, but it lives until it is freed, by this pool or any other of the rack, or until its node ends: the next life of the node
 * may give its addresses to others. What is to outlive a node is a region. */
int hl_alloc_kept(hl_pool *pool, uint64_t bytes, hl_address *address);

/* Frees an allocation. -EINVAL: there is none at this address. -EACCES: it is another pool's. */
int hl_free(hl_pool *pool, hl_address address);

/* Makes a region: named memory of zeros that is read and written in place. `rack` NULL: this one. -EEXIST: the name is
 * taken. -ENOSPC: no room. hl_stat tells others its address; hl_remove removes it. */
int hl_create_region(hl_pool *pool, const char *name, uint64_t bytes, const char *rack, hl_address *address);

/* The same, with its pages (2 MiB) spread over all nodes that have room; they move to the racks that use them. */
int hl_create_spread(hl_pool *pool, const char *name, uint64_t bytes, hl_address *address);

/* Reads or writes bytes at an address of any rack. A range may cross from one object to the next; nothing moves unless all
 * of it exists. An aligned word of 8 bytes is read and written whole; whoever needs more than that takes a lock.
 * -ENOENT: the address is nobody's. -EINVAL: it lies behind the end of an object. -EACCES: a write to a sealed object.
 * -EHOSTUNREACH: its node does not answer. The addresses of a removed object may work for up to a second. */
int hl_read(hl_pool *pool, hl_address address, void *buffer, size_t bytes);
int hl_write(hl_pool *pool, hl_address address, const void *buffer, size_t bytes);

/* Takes a lock on an address of any rack: together with other readers, or alone. Waits at most `wait_ms` milliseconds,
 * then -ETIMEDOUT. It is a name that pools agree on: reads and writes do not ask for it. -EINVAL: this pool has it. */
int hl_rlock(hl_pool *pool, hl_address address, uint32_t wait_ms);
int hl_wlock(hl_pool *pool, hl_address address, uint32_t wait_ms);

/* Gives a lock back. -EINVAL: this pool does not have it. */
int hl_unlock(hl_pool *pool, hl_address address);

/* --- guards: locked ranges of regions ---------------------------------------------------------------------- */

/* A lock on an address, with a range from there on that is read and written through it. Whoever has lost the lock, because it
 * was stopped or cut off for longer than the lease, changes nothing any more: its stores are refused with -EOWNERDEAD. Ranges
 * that start elsewhere do not exclude each other, even where they overlap. Threads may use one guard at a time together,
 * but for hl_guard_unlock. */
typedef struct hl_guard hl_guard;

/* Locks for reading with others, or for writing alone, `bytes` bytes of one region from `address` on. Waits at most `wait_ms`
 * milliseconds, then -ETIMEDOUT. -EINVAL: the range is not in one region. -EHOSTUNREACH: the node that keeps the lock is down. */
int hl_guard_read(hl_pool *pool, hl_address address, uint64_t bytes, uint32_t wait_ms, hl_guard **guard);
int hl_guard_write(hl_pool *pool, hl_address address, uint64_t bytes, uint32_t wait_ms, hl_guard **guard);

/* Makes a guard for writing of one for reading, once the other readers have left. After an error it is one for reading as
 * before. -EDEADLK: another reader waits for the same: one of the two must unlock. -ETIMEDOUT. -EINVAL: it is one for writing. */
int hl_guard_upgrade(hl_guard *guard, uint32_t wait_ms);

/* Reads or writes bytes at an offset of the range. A write of up to 256 bytes to another node has arrived when hl_guard_flush or
 * hl_guard_unlock says so, any other when this returns. -EINVAL: outside of the range. -EACCES: a guard for reading. -EOWNERDEAD:
 * the lock is lost. */
int hl_guard_load(hl_guard *guard, uint64_t offset, void *buffer, size_t bytes);
int hl_guard_store(hl_guard *guard, uint64_t offset, const void *buffer, size_t bytes);

/* Returns when all that was stored has arrived; an error says how much is not known to have. */
int hl_guard_flush(hl_guard *guard);

/* The number of the last grant of this lock to a writer: it grows with every writer. */
int hl_guard_fence(hl_guard *guard, uint64_t *fence);

/* Flushes, gives the lock back and ends the guard, whatever it returns. NULL is allowed. Before hl_close of its pool. */
int hl_guard_unlock(hl_guard *guard);

/* --- objects ----------------------------------------------------------------------------------------------- */

/* States of an object. */
#define HL_SEALED 1u   /* written once, never changes */
#define HL_WRITABLE 2u /* a region, read and written in place */

/* What is known of an object. */
typedef struct hl_object {
    uint64_t bytes;      /* size */
    hl_address address;  /* of its first byte */
    uint64_t object;     /* identifier, never used twice */
    uint32_t state;      /* HL_SEALED or HL_WRITABLE */
    uint32_t copies;     /* asked for */
    uint32_t homes;      /* nodes that hold a copy */
    uint32_t homes_up;   /* those that are alive */
    uint8_t digest[32];  /* blake3 over the size and the crc32c of each 64 KiB block; zeros for a region */
} hl_object;

/* Hears how many bytes have been put, of how many (0: unknown), on the thread that puts. Any value but 0 gives the put up:
 * nothing is left behind, and the call returns -ECANCELED. */
typedef int (*hl_progress)(void *context, uint64_t done, uint64_t total);

/* How to put. Set all to zeros first: zeros are the defaults. */
typedef struct hl_put_options {
    uint32_t copies;       /* whole copies on distinct nodes, 1 to 8; 0: one */
    uint32_t reserved;     /* 0 */
    const char *rack;      /* of the first copy; NULL: this one, else the one with the most room */
    hl_progress progress;  /* NULL: nobody hears */
    void *context;         /* for `progress` */
} hl_put_options;

/* Puts a file, or bytes of memory, as a sealed object. `options` NULL: the defaults. -EEXIST: the name is taken. -ENOSPC: no
 * room, before a byte moves if the size is known. After a failure nothing is left behind. */
int hl_put_file(hl_pool *pool, const char *name, const char *path, const hl_put_options *options);
int hl_put_buffer(hl_pool *pool, const char *name, const void *buffer, size_t bytes, const hl_put_options *options);

/* Reads `bytes` bytes of an object from `offset` on, as a home has them in memory: they are not compared with the checksums
 * of the object, which are those of whole blocks. -EINVAL: it has fewer. -ENOENT: no such name. */
int hl_get(hl_pool *pool, const char *name, uint64_t offset, void *buffer, size_t bytes);

/* Says what is known of an object. */
int hl_stat(hl_pool *pool, const char *name, hl_object *object);

/* Removes an object or a region. Who has it mapped keeps it until it is unmapped. */
int hl_remove(hl_pool *pool, const char *name);

/* --- handles: what a program lets its parts do ------------------------------------------------------------- */

/* An open object or region, with rights and a range of its bytes. Weaker ones are made of it for other parts of the program, and
 * taken back. Offsets are always those of the whole object. Any thread may use it, but for hl_handle_close. */
typedef struct hl_handle hl_handle;

/* Rights of a handle, or-ed. */
#define HL_READ 1u
#define HL_WRITE 2u /* of a region */

/* Opens an object or a region: a handle to all of its bytes. -ENOENT: no such name. -EACCES: HL_WRITE of a sealed object. */
int hl_handle_open(hl_pool *pool, const char *name, uint32_t rights, hl_handle **handle);

/* Makes a handle of another one, to `bytes` bytes from `offset` on and with these rights. It lives until it is closed, also when the
 * other one is closed before. -EACCES: rights that the other one lacks. -EINVAL: bytes that it does not reach. -EBADF: it was
 * revoked. -EMLINK: 32 were made each from the one before. */
int hl_handle_diminish(hl_handle *handle, uint32_t rights, uint64_t offset, uint64_t bytes, hl_handle **weaker);

/* Reads or writes bytes at an offset of the object, in any rack. -EINVAL: bytes that the handle does not reach. -EACCES: a right
 * that it lacks. -EBADF: it was revoked. -EHOSTUNREACH: no node that has them answers. */
int hl_handle_read(hl_handle *handle, uint64_t offset, void *buffer, size_t bytes);
int hl_handle_write(hl_handle *handle, uint64_t offset, const void *buffer, size_t bytes);

/* Takes a handle back, and all that were made from it: each use from here on is -EBADF; an access that another thread has begun may
 * still end. Each of them is still to be closed. Those that it was made from stay. What hl_map has mapped is not the handle's, and
 * stays. The second time nothing happens. */
int hl_handle_revoke(hl_handle *handle);

/* Gives a handle back, whatever became of it. NULL is allowed. No other thread may be using it. Before hl_close of its pool. */
int hl_handle_close(hl_handle *handle);

/* --- mapped objects ---------------------------------------------------------------------------------------- */

/* What a program expects of mapped memory. */
#define HL_ADVICE_NORMAL 0
#define HL_ADVICE_RANDOM 1
#define HL_ADVICE_SEQUENTIAL 2
#define HL_ADVICE_WILL_NEED 3

/* Maps an object for reading: of this rack its own memory, of another rack a cache that is filled when it is touched. It
 * lies at the same pointer in every process where that is free. If all its nodes die, a touch of bytes that are not on
 * this host is SIGBUS, and the reason is on stderr. -EINVAL: it has no bytes, which is no memory: hl_stat tells before. */
int hl_map(hl_pool *pool, const char *name, const void **pointer, uint64_t *bytes);

/* Maps a region of this rack for reading and writing. -EACCES: it is a sealed object, which hl_map maps. -ENOTSUP: it lies in another rack. */
int hl_map_region(hl_pool *pool, const char *name, void **pointer, uint64_t *bytes);

/* Unmaps what one of the two returned. */
int hl_unmap(hl_pool *pool, const void *pointer);

/* Says what is expected of `bytes` bytes from `offset` on of what one of the two returned: HL_ADVICE_*. */
int hl_advise(hl_pool *pool, const void *pointer, uint64_t offset, uint64_t bytes, int advice);

/* --- KV blocks --------------------------------------------------------------------------------------------- */

/* Blocks of one namespace, shared by the processes of this host and user: a key of 1 to 64 bytes, 1 byte to 4 MiB. A block is
 * there whole or not at all, never changes, and may be evicted at any moment. */
typedef struct hl_kv hl_kv;

/* Batches of KV blocks that threads of the library see to. */
typedef struct hl_kv_queue hl_kv_queue;

/* Fragments of equal length at equal distances. A block of an engine that keeps 128 layers apart is one run. */
typedef struct hl_run {
    void *start;      /* of the first fragment */
    size_t bytes;     /* of each */
    ptrdiff_t stride; /* from the start of one to the start of the next, in bytes; may be negative */
    size_t count;     /* fragments */
} hl_run;

/* A key, and the memory of its block: all its runs, one after the other. Runs are not looked at where no bytes move. */
typedef struct hl_block {
    const void *key;
    size_t key_bytes;
    const hl_run *runs;
    size_t run_count;
} hl_block;

/* Opens the blocks of engines that agree on everything in `fingerprint` (UTF-8): model, revision, type, layout, tokens of a
 * block, rank. Who has another text never sees them. The namespace may be used by many threads, and outlives the pool.
 *
 * At its first use the node makes its memory for blocks, which takes a second and more for each GiB: standard error says so. */
int hl_kv_open(hl_pool *pool, const char *fingerprint, hl_kv **kv);

/* Gives a namespace back; the blocks stay. NULL is allowed. No other thread may be using it; its queues may go on. */
int hl_kv_close(hl_kv *kv);

/* Writes blocks. `stored` (NULL: not wanted) gets a byte for each: 1 if it is there then, 0 if there was no room. One that was
 * there before is not written again. Two messages for a batch, so put in batches. */
int hl_kv_put(hl_kv *kv, const hl_block *blocks, size_t count, uint8_t *stored);

/* Copies blocks out. `found` (NULL: not wanted) gets a byte for each: 1, or 0 for a block that is missing, and then what is in
 * its memory is of no use. -EINVAL: the runs of a block are not as long as it is. No message. */
int hl_kv_get(hl_kv *kv, const hl_block *blocks, size_t count, uint8_t *found);

/* Looks for blocks: a byte for each, or how many are there from the first on. No message. */
int hl_kv_exists(hl_kv *kv, const hl_block *blocks, size_t count, uint8_t *found);
int hl_kv_match_prefix(hl_kv *kv, const hl_block *blocks, size_t count, size_t *found);

/* Removes blocks; `removed` (NULL: not wanted) gets how many were there. */
int hl_kv_remove(hl_kv *kv, const hl_block *blocks, size_t count, uint64_t *removed);

/* What a batch of a queue does, and what its answer for a block says. */
#define HL_KV_GET 1    /* in place */
#define HL_KV_PUT 2    /* stored */
#define HL_KV_EXISTS 3 /* there */
#define HL_KV_REMOVE 4 /* was there */
#define HL_KV_MATCH_PREFIX 5            /* there, and all before it */
#define HL_KV_MATCH_PREFIX_EVERYWHERE 6 /* the same, blocks of other racks counted too */
#define HL_KV_FETCH 7  /* here now, from another rack or the disk if need be */
#define HL_KV_PIN 8    /* kept from being evicted until it is unpinned as often, or the queue is closed */
#define HL_KV_UNPIN 9  /* was pinned by this queue */
#define HL_KV_CLEAR 10 /* removes all blocks of the namespace from this host; a batch without blocks */

/* What became of a batch. */
typedef struct hl_completion {
    uint64_t batch;    /* what hl_kv_submit gave */
    int status;        /* 0, or a negative errno value */
    uint32_t reserved; /* 0 */
} hl_completion;

/* Opens a queue: `workers` threads with a session each, 1 to 64, and at most `depth` batches that wait or are seen to, 1 to 65536. 0: 2 and
 * 1024. -EINVAL: more of either. */
int hl_kv_queue_open(hl_kv *kv, uint32_t workers, uint32_t depth, hl_kv_queue **queue);

/* The descriptor that is readable while completions wait, for poll and event loops. It is the queue's: nobody reads from it or
 * closes it. */
int hl_kv_queue_fd(hl_kv_queue *queue, int *descriptor);

/* Hands a batch to a queue: HL_KV_*. Records, keys and runs are copied; the fragments, and `answers` (a byte for each block;
 * NULL: not wanted), are the queue's until the batch is drained or the queue is closed. -EAGAIN: the queue is full. */
int hl_kv_submit(hl_kv_queue *queue, int operation, const hl_block *blocks, size_t count, uint8_t *answers, uint64_t *batch);

/* Takes at most `room` completions that wait, in the order in which batches were done; `count` gets how many. The answers of
 * each batch are written then: 1 for a block of which it is so (HL_KV_*). It does not wait. */
int hl_kv_drain(hl_kv_queue *queue, hl_completion *completions, size_t room, size_t *count);

/* Ends a queue: waits for batches that are being seen to, gives the others up. NULL is allowed. No other thread may be using
 * it. */
int hl_kv_queue_close(hl_kv_queue *queue);

/* Blocks that a GPU reaches, and batches on their way to or from it. Runs start at addresses of the GPU. */
typedef struct hl_kv_gpu hl_kv_gpu;
typedef struct hl_kv_transfer hl_kv_transfer;

/* Lets GPU `device` reach the blocks of a namespace (negative: the GPU of the current context, else 0): loads the driver and a
 * kernel, and registers the memory of all blocks, once. It may outlive `kv`. -ENODEV: no driver, GPU or NVRTC; -ENOMEM: the memory
 * cannot be registered; -ENOTSUP: the node's memory is not coherent. */
int hl_kv_gpu_open(hl_kv *kv, int device, hl_kv_gpu **gpu);

/* Takes the blocks away from the GPU; transfers go on. NULL is allowed. No other thread may be using it. */
int hl_kv_gpu_close(hl_kv_gpu *gpu);

/* Puts copies of blocks to or from memory of the GPU on a stream (cudaStream_t or CUstream; NULL: the default stream) in one launch,
 * and does not wait. Records, keys and runs are copied; the fragments and the stream are the transfer's until it ends. Nothing
 * counts before hl_kv_transfer_wait has said so, also for what is behind it on the stream. -EINVAL: a block is not as long as its
 * runs; -EFAULT: the GPU does not reach an address; -EAGAIN: 512 MiB of puts are under way. */
int hl_kv_get_on(hl_kv_gpu *gpu, const hl_block *blocks, size_t count, void *stream, hl_kv_transfer **transfer);
int hl_kv_put_on(hl_kv_gpu *gpu, const hl_block *blocks, size_t count, void *stream, hl_kv_transfer **transfer);

/* Whether the GPU is done: 1 or 0. One thread at a time. */
int hl_kv_transfer_arrived(hl_kv_transfer *transfer, int *arrived);

/* Waits, and ends the transfer, also at a failure. `answers` (NULL: not wanted) gets a byte for each block: 1 if it is in place, or
 * published, which is done here. */
int hl_kv_transfer_wait(hl_kv_transfer *transfer, uint8_t *answers);

/* Waits for the GPU and ends the transfer; a put is not published. NULL is allowed. */
int hl_kv_transfer_drop(hl_kv_transfer *transfer);

#ifdef __cplusplus
}
#endif

#endif
