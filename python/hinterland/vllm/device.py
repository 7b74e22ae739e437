"""A GPU in whose memory an engine's paged cache lies: views of its blocks, and their way to and from the pool.

What the engine launches runs behind its back. A copy into the cache must wait for kernels that may still read the blocks' old
bytes, and a copy out of it for those that compute them: both wait for a mark that the engine's own thread has set on its stream.
What was copied counts when the GPU is done: the thread that asked waits for that, and says so only then.
"""

import threading

import torch


class Device:
    """One GPU. Marks are set by the engine's thread; any thread may copy."""

    def __init__(self, index):
        self.index = index
        self._lock = threading.Lock()
        self._kv = self._gpu = None
        # Of their own: a copy waits for the mark it is given, and for nothing that is launched later.
        self._loads, self._saves = torch.cuda.Stream(index), torch.cuda.Stream(index)

    def mark(self):
        """Stands for everything that this thread has launched up to now."""
        return torch.cuda.current_stream(self.index).record_event()

    def get_into(self, kv, keys, buffers, mark):
        """Copies blocks into the cache; for each key whether its block is there."""
        self._loads.wait_event(mark)
        return self._of(kv).get_into(keys, buffers, self._loads).wait()

    def put(self, kv, keys, blocks, mark, prefix, after):
        """Copies blocks out of the cache; for each key whether it is there now."""
        self._saves.wait_event(mark)
        return self._of(kv).put(keys, blocks, self._saves, prefix=prefix, after=after).wait()

    def _of(self, kv):
        """The blocks as the GPU reaches them. A pool that was lost and is back is another one."""
        with self._lock:
            if self._kv is not kv:
                self._gpu, self._kv = kv.gpu(self.index), kv
            return self._gpu

    def close(self):
        with self._lock:
            if self._gpu is not None:
                self._gpu.close()
            self._kv = self._gpu = None


class DeviceSlice:
    """Some consecutive layers of a paged cache; `slice[block]` is the memory of one block of them."""

    def __init__(self, tensors, block_count, device):
        self.device = device
        self._layers = [by_blocks(tensor, block_count) for tensor in tensors]
        self.block_bytes = sum(layer[0].numel() for layer in self._layers)

    def __getitem__(self, block):
        return [layer[block] for layer in self._layers]


def by_blocks(tensor, block_count):
    """A layer's cache as bytes whose first axis are blocks: engines lay keys and values before them or behind."""
    axes = [axis for axis, length in enumerate(tensor.shape[:2]) if length == block_count]
    if len(axes) != 1 or tensor.dim() < 3 or tensor.stride(-1) != 1:
        raise ValueError(f"a layer's cache of {block_count} blocks has the shape {tuple(tensor.shape)}, strides {tensor.stride()}")
    return tensor.detach().movedim(axes[0], 0).view(torch.uint8)
