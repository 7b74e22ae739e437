"""The worker's side: copies blocks between the paged cache and the pool."""

import concurrent.futures
import functools

from .plan import NULL_BLOCK, Step

# Bytes of a load below which a second thread costs more than it brings.
SHARED_BYTES_MIN = 8 << 20


class Copier:
    """Runs the loads and saves of a step."""

    def __init__(self, link, groups, settings):
        self.link = link
        self.groups = groups
        self.settings = settings
        self.slices = []
        # The GPU that has the paged cache, and what the engine had launched there when the step began.
        self.device = self.begun = None
        self.slice_of_layer = {}
        self.step = Step()
        # Layers of each slice that were not computed in this step.
        self.left = {}
        # Loads that run beside the steps: the future of each request's.
        self.running = {}
        self.finished, self.failed = set(), set()
        # Blocks of the cache whose bytes are of no use, and what was computed from them, until they are computed anew.
        self.invalid = set()
        self.reported = set()
        # Loads by layers: the futures of each slice.
        self.by_slice = {}
        # What this step saves: of each group, the blocks that can be offered; and the slices that are on their way.
        self.offers = None
        self.saving = {}
        self.helpers = concurrent.futures.ThreadPoolExecutor(settings.copy_threads, "hinterland-copy")
        # One thread, so that loads and saves each go in their order.
        self.beside = concurrent.futures.ThreadPoolExecutor(1, "hinterland-load")
        self.saver = concurrent.futures.ThreadPoolExecutor(1, "hinterland-save")

    def close(self):
        for threads in (self.beside, self.saver, self.helpers):
            threads.shutdown(wait=True, cancel_futures=True)
        if self.device:
            self.device.close()

    def register(self, slices, device=None):
        """Takes the slices of the paged cache, in the order of their groups: (group, number, layers, slice)."""
        self.slices, self.device = slices, device
        self.slice_of_layer = {layer: place for place, (_, _, layers, _) in enumerate(slices) for layer in layers}

    # --- loads ---------------------------------------------------------------------------------------------------

    def open(self, step):
        """Takes a step before it computes anything. Loads that others need not wait for run beside it."""
        self.step = step
        self.begun = self.mark()
        self.offers = None
        self.left = {place: set(layers) for place, (_, _, layers, _) in enumerate(self.slices)}
        if self.settings.load == "beside" and step.busy:
            for load in step.loads:
                self.running[load.request_id] = (load, self.beside.submit(self._load, load))

    def mark(self):
        """What the engine has launched up to now, if it computes on a GPU."""
        return self.device and self.device.mark()

    def load(self):
        """Loads what the step itself waits for: all, or by layers."""
        for load in self.step.loads:
            if self.settings.load == "layers":
                self._load_by_layers(load)
            elif not self.step.busy:
                self._loaded(load, self._load(load))

    def _load(self, load):
        """Copies all slices of a load; the blocks of the engine's cache that could not be had."""
        if not self.slices:
            return {block for _, block, _ in load.blocks}
        wanted = [(place, block, key) for place in range(len(self.slices)) for block, key in self.keys(load, place)]
        return self._copy_shared(wanted)

    def keys(self, load, place):
        """The blocks of a load in the engine's cache, and the key of each in the pool, for one slice."""
        group, number, _, _ = self.slices[place]
        suffix = bytes((group, number))
        return [(block, name + suffix) for of, block, name in load.blocks if of == group]

    def _copy_shared(self, wanted):
        """Copies by as many threads as are set; the blocks that are missing."""
        # A GPU copies all of a batch in one launch.
        count = 1 if self.device else self.settings.copy_threads
        if count == 1 or sum(self.slices[place][3].block_bytes for place, _, _ in wanted) < SHARED_BYTES_MIN:
            return self._copy(wanted)
        bounds = [len(wanted) * number // count for number in range(count + 1)]
        parts = [wanted[first:end] for first, end in zip(bounds, bounds[1:])]
        others = [self.helpers.submit(self._copy, part) for part in parts[1:]]
        missing = self._copy(parts[0])
        for other in others:
            missing |= other.result()
        return missing

    def _copy(self, wanted):
        keys = [key for _, _, key in wanted]
        buffers = [self.slices[place][3][block] for place, block, _ in wanted]
        read = functools.partial(self._read, keys, buffers, self.begun)
        found = self.link.ask(read, [False] * len(keys))
        return {block for (_, block, _), there in zip(wanted, found) if not there}

    def _read(self, keys, buffers, begun, kv):
        remote = self.settings.remote
        if self.device is None:
            return kv.get_into(keys, buffers, remote=remote)
        if remote:
            kv.fetch(keys)
        return self.device.get_into(kv, keys, buffers, begun)

    def _loaded(self, load, missing):
        self.finished.add(load.request_id)
        if missing and len(self.groups) > 1:
            # Numbers of blocks tell nothing where several groups use them.
            self.failed.add(load.request_id)
        else:
            self.reported |= missing

    def _load_by_layers(self, load):
        if not self.slices:
            missing = self._load(load)
            self.reported |= missing
            self.invalid |= missing
        for place in range(len(self.slices)):
            wanted = [(place, block, key) for block, key in self.keys(load, place)]
            self.by_slice.setdefault(place, []).append(self.beside.submit(self._copy, wanted))

    def wait_for_layer(self, layer):
        """Waits until the slice of a layer is there."""
        for future in self.by_slice.pop(self.slice_of_layer.get(layer), ()):
            missing = future.result()
            self.reported |= missing
            self.invalid |= missing

    def results(self):
        """Requests whose loads beside the steps have ended, and those of them that failed."""
        for request_id in [name for name, (_, future) in self.running.items() if future.done()]:
            load, future = self.running.pop(request_id)
            self._loaded(load, future.result())
        finished, failed = self.finished, self.failed
        self.finished, self.failed = set(), set()
        return finished, failed

    def take_invalid(self):
        """Blocks of the cache that were not loaded, for the scheduler to have them computed."""
        reported, self.reported = self.reported, set()
        return reported

    # --- saves ---------------------------------------------------------------------------------------------------

    def layer_done(self, layer):
        """Takes note that a layer was computed; with the last one of a slice, the slice is saved beside the next ones."""
        place = self.slice_of_layer.get(layer)
        if place is None or not self.settings.save_beside or not self.step.saves:
            return
        left = self.left[place]
        if layer in left:
            left.remove(layer)
            # While layers are being loaded, it is not known which blocks are sound.
            if not left and not self.by_slice:
                self._judge()
                self.saving[place] = self.saver.submit(self._save, place, self.mark())

    def end(self):
        """Ends a step: everything that it saves is saved."""
        for place in list(self.by_slice):
            self.wait_for_layer(self.slices[place][2][0])
        if not self.step.saves:
            return
        self._judge()
        saving, self.saving = self.saving, {}
        computed = self.mark()
        for place in range(len(self.slices)):
            if place in saving:
                saving[place].result()
            else:
                self._save(place, computed)

    def _judge(self):
        """Works out once a step which blocks can be offered: none that stands on bytes that are of no use."""
        if self.offers is not None:
            return
        self.offers = {}
        for save in self.step.saves:
            stands_on = {block for table in save.tables for block in table[: save.computed]}
            anew = {block for table in save.tables for block in table[save.computed :]}
            sound = not (stands_on & self.invalid)
            self.invalid = self.invalid - anew if sound else self.invalid | anew
            if not sound:
                continue
            for group, table in zip(self.groups, save.tables):
                self.offers.setdefault(group.index, []).append((table[save.first :], save.hashes, save.after))

    def _save(self, place, computed):
        group, number, _, memory = self.slices[place]
        suffix = bytes((group, number))
        for blocks, names, after in self.offers.get(group, ()):
            offered = [(block, name + suffix) for block, name in zip(blocks, names) if block != NULL_BLOCK]
            # Blocks of a prefix leave the pool from its end; of a window, those leave that nobody reads.
            if self.groups[group].window_tokens is not None or len(offered) < len(names):
                self.link.ask(functools.partial(self._put, computed, memory, offered, None, False), None)
            else:
                self.link.ask(functools.partial(self._put, computed, memory, offered, after and after + suffix, True), None)

    def _put(self, computed, memory, offered, after, prefix, kv):
        """Puts what is not there yet: blocks of the paged cache with their keys, which follow on the key `after`."""
        there = kv.exists([key for _, key in offered])
        if all(there):
            return
        first = there.index(False)
        if first:
            after = offered[first - 1][1]
        keys = [key for _, key in offered[first:]]
        blocks = [memory[block] for block, _ in offered[first:]]
        after = after if prefix else None
        if self.device is None:
            kv.put(keys, blocks, prefix=prefix, after=after)
        else:
            self.device.put(kv, keys, blocks, computed, prefix, after)

