"""Encoder cache entries by content: one encoding serves every request with the same item, until room is needed.

    RESERVED --commit--> READY, referred to <--> READY, without reference --evict--> (absent)
                                      (queue of the evictable, longest without reference first)

Contract and states: `encoder_cache_book`. Questions are pure; only `allocate` evicts, and only as much as it needs. An
entry that nobody refers to keeps its content, so a later request with the same item finds it.

Invariant: free slots + sizes of all entries = cache size; freeable slots = free slots + sizes of the evictable.

Source: vLLM 0.33's EncoderCacheManager. Differences: entries are reserved first, so a step that is withdrawn leaves no
entry without content behind; asking whether an item fits evicts nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from mmcached.engine.encoder_cache_book import ReservedInput
from mmcached.engine.freed_keys import FreedKeys
from mmcached.engine.open_step import OpenStep
from mmcached.engine.request import Request
from mmcached.wire.errors import InvariantError, LocalProtocolError
from mmcached.wire.stats import EncoderCacheStats


@dataclass(slots=True)
class _Entry:
    num_embeds: int
    input_ids: dict[int, set[int]] = field(default_factory=dict)
    """By request: its items that refer to this entry."""


class SharedEncoderCacheManager:
    """Entries by `mm_hash`.

    Args:
        cache_size: capacity in embeddings.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._num_free = cache_size
        self._num_freeable = cache_size
        self._entries: dict[str, _Entry] = {}
        self._evictable: OrderedDict[str, None] = OrderedDict()
        self._reserved: dict[str, None] = {}
        self._cached: dict[int, dict[int, str]] = {}  # request -> item -> key
        self._freed = FreedKeys()
        self._step = OpenStep()
        self._queries = self._hits = self._evictions = 0

    @property
    def cache_size(self) -> int:
        return self._cache_size

    @property
    def num_free_slots(self) -> int:
        return self._num_free

    @property
    def num_freeable_slots(self) -> int:
        return self._num_freeable

    def entry_key(self, request: Request, input_id: int) -> str:
        return request.features[input_id].mm_hash

    def has_cache(self, request: Request, input_id: int) -> bool:
        return self.entry_key(request, input_id) in self._entries

    def num_embeds_to_pin(self, request: Request, input_id: int) -> int:
        key = self.entry_key(request, input_id)
        return self._entries[key].num_embeds if key in self._evictable else 0

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        key = self.entry_key(request, input_id)
        if key not in self._entries:
            return False
        if input_id not in self._cached.get(request.request_id, ()):
            self._queries += 1
            self._hits += 1
            self._refer(key, request.request_id, input_id)
        return True

    def can_allocate(
        self, request: Request, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        num_embeds = request.features[input_id].num_embeds
        return num_embeds <= encoder_compute_budget and num_embeds + num_embeds_to_schedule <= self._num_freeable

    def allocate(self, request: Request, input_id: int) -> None:
        key = self.entry_key(request, input_id)
        num_embeds = request.features[input_id].num_embeds
        if key in self._entries or num_embeds > self._num_freeable:
            raise LocalProtocolError(
                f"{key}: {num_embeds} embeddings, {self._num_freeable} freeable, or cached already"
            )
        while num_embeds > self._num_free:
            self._remove(next(iter(self._evictable)))
            self._evictions += 1
        self._queries += 1
        self._entries[key] = _Entry(num_embeds)
        self._num_free -= num_embeds
        self._evictable[key] = None  # its first reference takes it out again
        self._refer(key, request.request_id, input_id)
        if self._step.is_open:
            self._reserved[key] = None

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        self._unrefer(request.request_id, input_id)

    def free(self, request: Request) -> None:
        for input_id in sorted(self.get_cached_input_ids(request)):
            self._unrefer(request.request_id, input_id)

    def get_cached_input_ids(self, request: Request) -> set[int]:
        return set(self._cached.get(request.request_id, ()))

    def evictable_keys(self) -> list[str]:
        """Return the keys without reference, the next to be evicted first."""
        return list(self._evictable)

    def take_freed(self) -> list[str]:
        keys = self._freed.take(self._entries)
        if not self._step.is_open:
            self._freed.confirm()
        return keys

    def reset(self) -> None:
        self._num_free = self._num_freeable = self._cache_size
        self._entries.clear()
        self._evictable.clear()
        self._reserved.clear()
        self._cached.clear()
        self._freed.clear()
        self._step = OpenStep()

    def begin_step(self, step_id: int) -> None:
        self._step.begin(step_id)

    def commit(self, step_id: int) -> None:
        self._step.end(step_id)
        self._reserved.clear()
        self._freed.confirm()

    def withdraw(self, step_id: int) -> None:
        self._step.end(step_id)
        self._freed.retell()
        for key in list(self._reserved):
            for request_id, input_ids in list(self._entries[key].input_ids.items()):
                for input_id in list(input_ids):
                    self._unrefer(request_id, input_id)  # the last one removes the entry

    def reserved_inputs(self) -> list[ReservedInput]:
        inputs = []
        for key in self._reserved:
            request_id, input_ids = next(iter(self._entries[key].input_ids.items()))
            inputs.append(ReservedInput(key, request_id, min(input_ids)))
        return inputs

    def holders(self) -> set[int]:
        return set(self._cached)

    def stats(self) -> EncoderCacheStats:
        return EncoderCacheStats(
            queries=self._queries,
            hits=self._hits,
            embeds_used=self._cache_size - self._num_free,
            embeds_total=self._cache_size,
            evictions=self._evictions,
        )

    def check_integrity(self) -> None:
        num_held = sum(entry.num_embeds for entry in self._entries.values())
        num_evictable = sum(self._entries[key].num_embeds for key in self._evictable)
        if self._num_free + num_held != self._cache_size or self._num_free < 0:
            raise InvariantError(f"{self._num_free} free + {num_held} held are not {self._cache_size}")
        if self._num_freeable != self._num_free + num_evictable:
            raise InvariantError(
                f"{self._num_freeable} freeable: not {self._num_free} free + {num_evictable} evictable"
            )
        by_entry = {
            (request_id, input_id, key)
            for key, entry in self._entries.items()
            for request_id, input_ids in entry.input_ids.items()
            for input_id in input_ids
        }
        by_request = {(req, input_id, key) for req, keys in self._cached.items() for input_id, key in keys.items()}
        if by_entry != by_request or {} in self._cached.values():
            raise InvariantError(f"entries and requests disagree on {by_entry ^ by_request}")
        without_reference = {key for key, entry in self._entries.items() if not entry.input_ids}
        if without_reference != self._evictable.keys():
            raise InvariantError(
                f"evictable is not what nobody refers to: {without_reference ^ self._evictable.keys()}"
            )
        if self._reserved.keys() & without_reference or (self._reserved and not self._step.is_open):
            raise InvariantError(f"reserved {list(self._reserved)}: without reference, or without a step")

    def _refer(self, key: str, request_id: int, input_id: int) -> None:
        entry = self._entries[key]
        if key in self._evictable:
            del self._evictable[key]
            self._num_freeable -= entry.num_embeds
        entry.input_ids.setdefault(request_id, set()).add(input_id)
        self._cached.setdefault(request_id, {})[input_id] = key

    def _unrefer(self, request_id: int, input_id: int) -> None:
        key = self._cached.get(request_id, {}).pop(input_id, None)
        if key is None:
            return
        if not self._cached[request_id]:
            del self._cached[request_id]
        entry = self._entries[key]
        entry.input_ids[request_id].discard(input_id)
        if not entry.input_ids[request_id]:
            del entry.input_ids[request_id]
        if not entry.input_ids:
            self._evictable[key] = None
            self._num_freeable += entry.num_embeds
            if key in self._reserved:  # never encoded: nothing to keep
                del self._reserved[key]
                self._remove(key)

    def _remove(self, key: str) -> None:
        """Drop an evictable entry and have the workers told."""
        del self._evictable[key]
        self._num_free += self._entries.pop(key).num_embeds
        self._freed.add(key)
