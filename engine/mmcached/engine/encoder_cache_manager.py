"""Encoder cache entries that belong to one request: nothing is shared, and what is freed is dropped at once.

Simple and exact, for models whose encoder outputs depend on more than the item. Contract and states:
`encoder_cache_book`. Invariant: free slots + sizes of all entries = cache size.

Source: vLLM 0.9's EncoderCacheManager. Freeing what is not held changes nothing here; there it inflated the free
slots.
"""

from __future__ import annotations

from mmcached.engine.encoder_cache_book import ReservedInput
from mmcached.engine.freed_keys import FreedKeys
from mmcached.engine.open_step import OpenStep
from mmcached.engine.request import Request
from mmcached.wire.errors import InvariantError, LocalProtocolError
from mmcached.wire.stats import EncoderCacheStats


class EncoderCacheManager:
    """Entries by request and item index.

    Args:
        cache_size: capacity in embeddings.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._num_free = cache_size
        self._sizes: dict[str, int] = {}
        self._cached: dict[int, set[int]] = {}
        self._reserved: dict[str, ReservedInput] = {}
        self._freed = FreedKeys()
        self._step = OpenStep()
        self._queries = 0

    @property
    def cache_size(self) -> int:
        return self._cache_size

    @property
    def num_free_slots(self) -> int:
        return self._num_free

    @property
    def num_freeable_slots(self) -> int:
        return self._num_free

    def entry_key(self, request: Request, input_id: int) -> str:
        return f"{request.request_id}:{input_id}"

    def has_cache(self, request: Request, input_id: int) -> bool:
        return self.entry_key(request, input_id) in self._sizes

    def num_embeds_to_pin(self, request: Request, input_id: int) -> int:
        return 0

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        return self.has_cache(request, input_id)

    def can_allocate(
        self, request: Request, input_id: int, encoder_compute_budget: int, num_embeds_to_schedule: int
    ) -> bool:
        num_embeds = request.features[input_id].num_embeds
        return num_embeds <= encoder_compute_budget and num_embeds + num_embeds_to_schedule <= self._num_free

    def allocate(self, request: Request, input_id: int) -> None:
        key = self.entry_key(request, input_id)
        num_embeds = request.features[input_id].num_embeds
        if key in self._sizes or num_embeds > self._num_free:
            raise LocalProtocolError(f"{key}: {num_embeds} embeddings, {self._num_free} free, or cached already")
        self._queries += 1
        self._num_free -= num_embeds
        self._sizes[key] = num_embeds
        self._cached.setdefault(request.request_id, set()).add(input_id)
        if self._step.is_open:
            self._reserved[key] = ReservedInput(key, request.request_id, input_id)

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        self._drop(request.request_id, input_id, self.entry_key(request, input_id))

    def free(self, request: Request) -> None:
        for input_id in sorted(self.get_cached_input_ids(request)):
            self.free_encoder_input(request, input_id)

    def get_cached_input_ids(self, request: Request) -> set[int]:
        return set(self._cached.get(request.request_id, ()))

    def take_freed(self) -> list[str]:
        keys = self._freed.take(self._sizes)
        if not self._step.is_open:
            self._freed.confirm()
        return keys

    def reset(self) -> None:
        self._num_free = self._cache_size
        self._sizes.clear()
        self._cached.clear()
        self._reserved.clear()
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
        for reserved in list(self._reserved.values()):
            self._drop(reserved.request_id, reserved.input_id, reserved.key)

    def reserved_inputs(self) -> list[ReservedInput]:
        return list(self._reserved.values())

    def holders(self) -> set[int]:
        return set(self._cached)

    def stats(self) -> EncoderCacheStats:
        return EncoderCacheStats(
            queries=self._queries, embeds_used=self._cache_size - self._num_free, embeds_total=self._cache_size
        )

    def check_integrity(self) -> None:
        if self._num_free + sum(self._sizes.values()) != self._cache_size or self._num_free < 0:
            raise InvariantError(f"{self._num_free} free + entries {self._sizes} are not {self._cache_size}")
        keys = {f"{request_id}:{input_id}" for request_id, ids in self._cached.items() for input_id in ids}
        if keys != self._sizes.keys() or set() in self._cached.values():
            raise InvariantError(f"entries and requests disagree on {keys ^ self._sizes.keys()}")
        if not self._reserved.keys() <= keys or (self._reserved and not self._step.is_open):
            raise InvariantError(f"reserved {sorted(self._reserved)}: without an entry, or without a step")

    def _drop(self, request_id: int, input_id: int, key: str) -> None:
        num_embeds = self._sizes.pop(key, None)
        if num_embeds is None:
            return
        self._num_free += num_embeds
        self._reserved.pop(key, None)
        self._cached[request_id].discard(input_id)
        if not self._cached[request_id]:
            del self._cached[request_id]
        self._freed.add(key)
