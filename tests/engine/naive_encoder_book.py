"""What both encoder cache managers promise, said with one list of entries and no thought of speed.

An entry is found by scanning, every sum is added up anew, and a key is a content and an epoch, not a string.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcached.engine import Request
from mmcached.engine.encoder.encoder_budget import EncoderCacheScope

Content = tuple[object, ...]
Key = tuple[Content, int]
Reference = tuple[int, int]


class OtherSizeError(Exception):
    """An entry of the same content has another number of embeddings."""


@dataclass
class NaiveEntry:
    content: Content
    epoch: int
    size: int
    is_ready: bool
    references: list[Reference] = field(default_factory=list)

    @property
    def key(self) -> Key:
        return self.content, self.epoch


class NaiveEncoderBook:
    """The same calls, for callers who have asked before.

    Attributes:
        entries: those without reference in the order in which they lost their last one.
        references: of all entries, in the order in which they were taken up.
        pending, told: keys that workers are to be told, and have been told in the open step.
    """

    def __init__(self, scope: EncoderCacheScope, cache_size: int) -> None:
        self._is_shared = scope == "shared"
        self.cache_size = cache_size
        self.epoch = 0
        self.entries: list[NaiveEntry] = []
        self.references: list[Reference] = []
        self.pending: list[Key] = []
        self.told: list[Key] = []
        self.is_step_open = False
        self.num_hits = self.num_allocated = self.num_evicted = 0

    # ---- questions

    @property
    def num_free(self) -> int:
        return self.cache_size - sum(entry.size for entry in self.entries)

    @property
    def num_freeable(self) -> int:
        return self.cache_size - sum(entry.size for entry in self.entries if entry.references)

    def content(self, request: Request, input_id: int) -> Content:
        if self._is_shared:
            return (request.features[input_id].mm_hash,)
        return request.request_id, input_id

    def held(self, request: Request, input_id: int) -> NaiveEntry | None:
        reference = request.request_id, input_id
        return next((entry for entry in self.entries if reference in entry.references), None)

    def anyones(self, request: Request, input_id: int) -> NaiveEntry | None:
        """Return what the item holds, or the entry of its content and this epoch, of whatever size."""
        key = self.content(request, input_id), self.epoch
        found = next((entry for entry in self.entries if entry.key == key), None)
        return self.held(request, input_id) or found

    def entry(self, request: Request, input_id: int) -> NaiveEntry | None:
        entry = self.anyones(request, input_id)
        is_own = entry is not None and (request.request_id, input_id) in entry.references
        if entry is not None and not is_own and entry.size != request.features[input_id].num_embeds:
            raise OtherSizeError
        return entry

    def key(self, request: Request, input_id: int) -> Key:
        held = self.held(request, input_id)
        return held.key if held is not None else (self.content(request, input_id), self.epoch)

    def num_to_pin(self, request: Request, input_id: int) -> int:
        entry = self.entry(request, input_id)
        return 0 if entry is None or entry.references else entry.size

    def fits(self, request: Request, input_id: int, num_taken: int = 0) -> bool:
        return request.features[input_id].num_embeds + num_taken <= self.num_freeable

    def idle(self) -> list[NaiveEntry]:
        return [entry for entry in self.entries if not entry.references]

    def keys(self, *, is_ready: bool) -> set[Key]:
        return {entry.key for entry in self.entries if entry.is_ready == is_ready}

    def lingering(self) -> set[Key]:
        return {*self.pending, *self.told} - {entry.key for entry in self.entries}

    # ---- moves

    def check(self, request: Request, input_id: int) -> bool:
        entry = self.entry(request, input_id)
        if entry is None:
            return False
        if (request.request_id, input_id) not in entry.references:
            self._refer(entry, request, input_id)
            self.num_hits += 1
        return True

    def allocate(self, request: Request, input_id: int) -> None:
        size = request.features[input_id].num_embeds
        while size > self.num_free:
            self._end(self.idle()[0])
            self.num_evicted += 1
        entry = NaiveEntry(self.content(request, input_id), self.epoch, size, is_ready=not self.is_step_open)
        self._refer(entry, request, input_id)
        self.entries.append(entry)
        self.num_allocated += 1

    def free_input(self, request: Request, input_id: int) -> None:
        self._unrefer(request.request_id, input_id)

    def free(self, request: Request) -> None:
        for request_id, input_id in list(self.references):
            if request_id == request.request_id:
                self._unrefer(request_id, input_id)

    def take(self) -> list[Key]:
        present = {entry.key for entry in self.entries}
        taken = [key for key in dict.fromkeys(self.pending) if key not in present]
        self.pending = []
        if self.is_step_open:
            self.told += taken
        return taken

    def new_epoch(self) -> None:
        self.epoch += 1
        for entry in self.idle():
            self._end(entry)

    def reset(self) -> None:
        self.entries, self.references, self.pending, self.told = [], [], [], []
        self.is_step_open = False

    def begin(self) -> None:
        self.is_step_open = True

    def commit(self) -> None:
        self.is_step_open = False
        self.told = []
        for entry in self.entries:
            entry.is_ready = True

    def withdraw(self) -> None:
        self.is_step_open = False
        self.pending, self.told = self.told + self.pending, []
        for entry in [entry for entry in self.entries if not entry.is_ready]:
            self._end(entry)

    def _refer(self, entry: NaiveEntry, request: Request, input_id: int) -> None:
        entry.references.append((request.request_id, input_id))
        self.references.append((request.request_id, input_id))

    def _unrefer(self, request_id: int, input_id: int) -> None:
        reference = request_id, input_id
        if reference not in self.references:
            return
        self.references.remove(reference)
        entry = next(entry for entry in self.entries if reference in entry.references)
        entry.references.remove(reference)
        if entry.references:
            return
        if self._is_shared and entry.is_ready and entry.epoch == self.epoch:
            self.entries.remove(entry)
            self.entries.append(entry)
        else:
            self._end(entry)

    def _end(self, entry: NaiveEntry) -> None:
        self.entries.remove(entry)
        self.references = [each for each in self.references if each not in entry.references]
        self.pending.append(entry.key)
