"""Encoder cache entries by content: one encoding serves every request with the same item, until room is needed.

    RESERVED --commit--> READY, referred to <--> READY, without reference --evict--> (absent)
                                |               (queue of the evictable, longest without reference first)
                                +--last reference of an old epoch's entry--> (absent)

Contract and states: `encoder_cache_book`. Questions are pure; only `allocate` evicts, and only as much as it needs. An
entry that nobody refers to keeps its content, so a later request with the same item finds it. An item that occurs
twice in a request is two references: the entry stays until the last occurrence has been released.

`new_epoch` empties the table of contents. Entries that somebody refers to live on outside of it, as long as that; an
entry's key says its epoch, so the same content may be encoded anew beside them.

Invariant: free slots + sizes of all entries = cache size; freeable slots = free slots + sizes of the evictable.

Source: vLLM 0.33's EncoderCacheManager; its public names mean the same here. Differences: entries are reserved first,
so a step that is withdrawn leaves no entry without content behind; asking whether an item fits evicts nothing, so
between `can_allocate` and `allocate` nothing that lies evictable may be referred to; `allocate` refuses what is there
already, or does not fit; its tables are copies.
"""

from __future__ import annotations

from collections import OrderedDict

from mmcached.engine.encoder.encoder_cache_book import ReservedInput
from mmcached.engine.encoder.shared_encoder_entry import SharedEntry, all_entries, check_entries
from mmcached.engine.steps.freed_keys import FreedKeys
from mmcached.engine.steps.open_step import OpenStep
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import InvalidRequest, InvariantError, LocalProtocolError
from mmcached.wire.stats import EncoderCacheStats


class SharedEncoderCacheManager:
    """Entries by `mm_hash`.

    Args:
        cache_size: capacity in embeddings.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._num_free = cache_size
        self._num_freeable = cache_size
        self._epoch = 0
        self._entries: dict[str, SharedEntry] = {}  # by content, of this epoch
        self._evictable: OrderedDict[str, SharedEntry] = OrderedDict()  # those without reference
        self._held: dict[int, dict[int, SharedEntry]] = {}  # request -> item -> what it refers to; never an empty dict
        self._reserved: dict[str, tuple[SharedEntry, int, int]] = {}  # by key: request and item that it was made for
        self._freed: FreedKeys[str] = FreedKeys()
        self._step = OpenStep()
        self._num_allocated = self._num_hits = self._num_evicted = 0

    @property
    def cache_size(self) -> int:
        return self._cache_size

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def num_free_slots(self) -> int:
        return self._num_free

    @property
    def num_freeable_slots(self) -> int:
        return self._num_freeable

    # ---- questions

    def entry_key(self, request: Request, input_id: int) -> str:
        entry = self._held.get(request.request_id, {}).get(input_id)
        return entry.key if entry is not None else self._key(request.features[input_id].mm_hash)

    def has_cache(self, request: Request, input_id: int) -> bool:
        return self._entry(request, input_id) is not None

    def get_cached_num_encoder_embeds(self, request: Request, input_id: int) -> int | None:
        held = self._held.get(request.request_id, {})
        entry = held.get(input_id) or self._entries.get(request.features[input_id].mm_hash)
        return None if entry is None else entry.num_embeds

    def num_embeds_to_pin(self, request: Request, input_id: int) -> int:
        entry = self._entry(request, input_id)
        return 0 if entry is None or entry.num_references else entry.num_embeds

    def can_allocate(
        self,
        request: Request,
        input_id: int,
        encoder_compute_budget: int | None = None,
        num_embeds_to_schedule: int = 0,
    ) -> bool:
        num_embeds = request.features[input_id].num_embeds
        if encoder_compute_budget is not None and num_embeds > encoder_compute_budget:
            return False
        return num_embeds + num_embeds_to_schedule <= self._num_freeable

    def get_cached_input_ids(self, request: Request) -> set[int]:
        return set(self._held.get(request.request_id, ()))

    # ---- references and entries

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        held = self._held.get(request.request_id)
        if held is not None and input_id in held:
            return True
        feature = request.features[input_id]
        entry = self._entries.get(feature.mm_hash)
        if entry is None:
            return False
        if entry.num_embeds != feature.num_embeds:
            raise self._other_size(request, input_id, entry)
        if not entry.num_references:
            del self._evictable[entry.mm_hash]
            self._num_freeable -= entry.num_embeds
        entry.num_references += 1
        self._held.setdefault(request.request_id, {})[input_id] = entry
        self._num_hits += 1
        return True

    def allocate(self, request: Request, input_id: int) -> None:
        feature = request.features[input_id]
        num_embeds = feature.num_embeds
        held = self._held.get(request.request_id, ())
        if feature.mm_hash in self._entries or input_id in held or num_embeds > self._num_freeable:
            raise self._refusal(request, input_id)
        while num_embeds > self._num_free:
            self._drop(self._evictable.popitem(last=False)[1])
            self._num_evicted += 1
        key = self._key(feature.mm_hash)
        entry = SharedEntry(feature.mm_hash, key, num_embeds, 1)
        self._entries[feature.mm_hash] = entry
        self._num_free -= num_embeds
        self._num_freeable -= num_embeds
        self._held.setdefault(request.request_id, {})[input_id] = entry
        self._freed.discard(key)
        self._num_allocated += 1
        if self._step.is_open:
            self._reserved[key] = entry, request.request_id, input_id

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        held = self._held.get(request.request_id)
        if held is None or input_id not in held:
            return
        entry = held.pop(input_id)
        if not held:
            del self._held[request.request_id]
        self._release(entry)

    def free(self, request: Request) -> None:
        for entry in self._held.pop(request.request_id, {}).values():
            self._release(entry)

    def take_freed(self) -> list[str]:
        return self._freed.take(is_certain=not self._step.is_open)

    def get_freed_mm_hashes(self) -> list[str]:
        """Return and clear the keys that workers must drop; vLLM's name for `take_freed`."""
        return self.take_freed()

    def new_epoch(self) -> int:
        for entry in self._evictable.values():
            self._num_free += entry.num_embeds
            self._freed.add(entry.key)
        for entry in self._entries.values():
            entry.is_old = True
        self._entries.clear()
        self._evictable.clear()
        self._epoch += 1
        return self._epoch

    def reset(self) -> None:
        self._num_free = self._num_freeable = self._cache_size
        self._entries.clear()
        self._evictable.clear()
        self._held.clear()
        self._reserved.clear()
        self._freed.clear()
        self._step = OpenStep()

    # ---- steps

    def begin_step(self, step_id: int) -> None:
        self._step.begin(step_id)

    def commit(self, step_id: int) -> None:
        self._step.end(step_id)
        self._reserved.clear()
        self._freed.confirm()

    def withdraw(self, step_id: int) -> None:
        self._step.end(step_id)
        self._freed.retell()
        if not self._reserved:
            return
        for request_id, held in list(self._held.items()):
            for input_id in [input_id for input_id, entry in held.items() if entry.key in self._reserved]:
                self._release(held.pop(input_id))  # of each entry, the last one drops it
            if not held:
                del self._held[request_id]

    def reserved_inputs(self) -> list[ReservedInput]:
        return [
            ReservedInput(key, *self._reference(entry, request_id, input_id))
            for key, (entry, request_id, input_id) in self._reserved.items()
        ]

    # ---- looking in

    @property
    def cached(self) -> dict[str, set[int]]:
        """By key: the requests that refer to the entry."""
        referring: dict[str, set[int]] = {entry.key: set() for entry in self._all_entries()}
        for request_id, held in self._held.items():
            for entry in held.values():
                referring[entry.key].add(request_id)
        return referring

    @property
    def num_embeds_by_hash(self) -> dict[str, int]:
        """By key: the size of the entry."""
        return {entry.key: entry.num_embeds for entry in self._all_entries()}

    @property
    def freeable(self) -> OrderedDict[str, int]:
        """By key: the sizes of the entries without reference, the next to be evicted first."""
        return OrderedDict((entry.key, entry.num_embeds) for entry in self._evictable.values())

    @property
    def freed(self) -> list[str]:
        """Keys that have been dropped, and not been told."""
        return self._freed.pending()

    def holders(self) -> set[int]:
        return set(self._held)

    def ready_keys(self) -> set[str]:
        return self.num_embeds_by_hash.keys() - self._reserved.keys()

    def lingering_keys(self) -> set[str]:
        return self._freed.unconfirmed() - self.num_embeds_by_hash.keys()

    def stats(self) -> EncoderCacheStats:
        return EncoderCacheStats(
            queries=self._num_allocated + self._num_hits,
            hits=self._num_hits,
            embeds_used=self._cache_size - self._num_free,
            embeds_total=self._cache_size,
            evictions=self._num_evicted,
        )

    def check_integrity(self) -> None:
        num_used = sum(entry.num_embeds for entry in self._all_entries())
        num_evictable = sum(entry.num_embeds for entry in self._evictable.values())
        if self._num_free + num_used != self._cache_size or self._num_free < 0:
            raise InvariantError(f"{self._num_free} free + {num_used} used are not {self._cache_size}")
        if self._num_freeable != self._num_free + num_evictable:
            raise InvariantError(f"{self._num_freeable} freeable: not {self._num_free} free + {num_evictable} idle")
        if self._reserved and not self._step.is_open:
            raise InvariantError(f"reserved {list(self._reserved)} without a step")
        check_entries(self._entries, self._evictable, self._held, [entry for entry, *_ in self._reserved.values()])

    # ---- the table

    def _key(self, mm_hash: str) -> str:
        """Return the key of a content in this epoch; no two contents, in whichever epochs, share one."""
        return f"{mm_hash}@{self._epoch}" if self._epoch or "@" in mm_hash else mm_hash

    def _entry(self, request: Request, input_id: int) -> SharedEntry | None:
        """Return what an item refers to, else what it may refer to, else None."""
        held = self._held.get(request.request_id)
        if held is not None and input_id in held:
            return held[input_id]
        return self._find(request, input_id)

    def _find(self, request: Request, input_id: int) -> SharedEntry | None:
        """Return the entry of an item's content in this epoch. Raises InvalidRequest if it is of another size."""
        feature = request.features[input_id]
        entry = self._entries.get(feature.mm_hash)
        if entry is not None and entry.num_embeds != feature.num_embeds:
            raise self._other_size(request, input_id, entry)
        return entry

    def _other_size(self, request: Request, input_id: int, entry: SharedEntry) -> InvalidRequest:
        limit = f"an item of equal content has {entry.num_embeds}"
        return InvalidRequest(f"features[{input_id}].num_embeds", request.features[input_id].num_embeds, limit)

    def _refusal(self, request: Request, input_id: int) -> LocalProtocolError:
        item = f"item {input_id} of {request}"
        if self._entry(request, input_id) is not None:
            return LocalProtocolError(f"{item} is cached already: refer to it")
        num_embeds = request.features[input_id].num_embeds
        return LocalProtocolError(f"{item}: {num_embeds} embeddings, {self._num_freeable} freeable")

    def _all_entries(self) -> list[SharedEntry]:
        return all_entries(self._entries, self._held)

    def _reference(self, entry: SharedEntry, request_id: int, input_id: int) -> tuple[int, int]:
        """Return the given reference to an entry if there still is one, else any other."""
        if self._held.get(request_id, {}).get(input_id) is entry:
            return request_id, input_id
        references = ((request_id, held) for request_id, held in self._held.items())
        return next((req, item) for req, held in references for item, found in held.items() if found is entry)

    def _release(self, entry: SharedEntry) -> None:
        """Take away a reference that is no longer in the table of who holds what."""
        entry.num_references -= 1
        if entry.num_references:
            return
        self._num_freeable += entry.num_embeds
        if entry.is_old or entry.key in self._reserved:  # or never encoded: nothing to keep
            self._reserved.pop(entry.key, None)
            self._drop(entry)
        else:
            self._evictable[entry.mm_hash] = entry

    def _drop(self, entry: SharedEntry) -> None:
        """Make an end of an entry without reference, and have the workers told."""
        if not entry.is_old:
            del self._entries[entry.mm_hash]
        self._num_free += entry.num_embeds
        self._freed.add(entry.key)
