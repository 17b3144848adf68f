"""Encoder cache entries that belong to one request: nothing is shared, and what is freed is dropped at once.

Simple and exact, for models whose encoder outputs depend on more than the item, and for encoder-decoder models, which
use no output twice. Contract and states: `encoder_cache_book`. An entry has the size that it was made with, so giving
it back, by whom and how often ever, makes exactly the room that it took.

Invariant: free slots + sizes of all entries = cache size.

Source: vLLM 0.9's EncoderCacheManager, whose calls work here. Differences: freeing what is not held changes nothing
(there it inflated the free slots); `allocate` refuses what is there already, or does not fit; a freed item that was
allocated again is not told; `cached` and `freed` are copies.
"""

from __future__ import annotations

from typing import NamedTuple

from mmcached.engine.encoder.encoder_cache_book import ReservedInput
from mmcached.engine.steps.freed_keys import FreedKeys
from mmcached.engine.steps.open_step import OpenStep
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import InvariantError, LocalProtocolError
from mmcached.wire.stats import EncoderCacheStats


class _Name(NamedTuple):
    """What tells an entry from all others; the epoch is that in which it was allocated."""

    request_id: int
    input_id: int
    epoch: int

    @property
    def key(self) -> str:
        return f"{self.request_id}:{self.input_id}" + (f"@{self.epoch}" if self.epoch else "")


class EncoderCacheManager:
    """Entries by request and item index.

    Args:
        cache_size: capacity in embeddings.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._num_free = cache_size
        self._epoch = 0
        self._sizes: dict[_Name, int] = {}
        self._held: dict[int, dict[int, _Name]] = {}  # request -> item -> its entry; never an empty dict
        self._reserved: dict[_Name, None] = {}
        self._freed: FreedKeys[_Name] = FreedKeys()
        self._step = OpenStep()
        self._num_allocated = 0

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
        return self._num_free

    # ---- questions

    def entry_key(self, request: Request, input_id: int) -> str:
        name = self._name(request, input_id) or _Name(request.request_id, input_id, self._epoch)
        return name.key

    def has_cache(self, request: Request, input_id: int) -> bool:
        return self._name(request, input_id) is not None

    def get_cached_num_encoder_embeds(self, request: Request, input_id: int) -> int | None:
        name = self._name(request, input_id)
        return None if name is None else self._sizes[name]

    def num_embeds_to_pin(self, request: Request, input_id: int) -> int:
        return 0

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
        return num_embeds + num_embeds_to_schedule <= self._num_free

    def get_cached_input_ids(self, request: Request) -> set[int]:
        return set(self._held.get(request.request_id, ()))

    # ---- references and entries

    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        return self.has_cache(request, input_id)

    def allocate(self, request: Request, input_id: int) -> None:
        num_embeds = request.features[input_id].num_embeds
        if self.has_cache(request, input_id):
            raise LocalProtocolError(f"item {input_id} of {request} is cached already")
        if num_embeds > self._num_free:
            raise LocalProtocolError(f"item {input_id} of {request}: {num_embeds} embeddings, {self._num_free} free")
        name = _Name(request.request_id, input_id, self._epoch)
        self._num_allocated += 1
        self._num_free -= num_embeds
        self._sizes[name] = num_embeds
        self._held.setdefault(request.request_id, {})[input_id] = name
        self._freed.discard(name)
        if self._step.is_open:
            self._reserved[name] = None

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        name = self._name(request, input_id)
        if name is not None:
            self._drop(name)

    def free(self, request: Request) -> None:
        for name in list(self._held.get(request.request_id, {}).values()):
            self._drop(name)

    def take_freed(self) -> list[str]:
        return [name.key for name in self._take_freed()]

    def get_freed_ids(self) -> list[tuple[int, int]]:
        """Return and clear request id and index of the items that workers must drop; the seed's `take_freed`."""
        return [(name.request_id, name.input_id) for name in self._take_freed()]

    def new_epoch(self) -> int:
        self._epoch += 1
        return self._epoch

    def reset(self) -> None:
        self._num_free = self._cache_size
        self._sizes.clear()
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
        for name in list(self._reserved):
            self._drop(name)

    def reserved_inputs(self) -> list[ReservedInput]:
        return [ReservedInput(name.key, name.request_id, name.input_id) for name in self._reserved]

    # ---- looking in

    @property
    def cached(self) -> dict[int, set[int]]:
        """By request: the items that have an entry."""
        return {request_id: set(held) for request_id, held in self._held.items()}

    @property
    def freed(self) -> list[tuple[int, int]]:
        """Request id and index of the items that have been dropped, and not been told."""
        return [(name.request_id, name.input_id) for name in self._freed.pending()]

    def holders(self) -> set[int]:
        return set(self._held)

    def ready_keys(self) -> set[str]:
        return {name.key for name in self._sizes.keys() - self._reserved.keys()}

    def lingering_keys(self) -> set[str]:
        return {name.key for name in self._freed.unconfirmed() - self._sizes.keys()}

    def stats(self) -> EncoderCacheStats:
        return EncoderCacheStats(
            queries=self._num_allocated, embeds_used=self._cache_size - self._num_free, embeds_total=self._cache_size
        )

    def check_integrity(self) -> None:
        if self._num_free + sum(self._sizes.values()) != self._cache_size or self._num_free < 0:
            raise InvariantError(f"{self._num_free} free + entries {self._sizes} are not {self._cache_size}")
        held = {name for items in self._held.values() for name in items.values()}
        if held != self._sizes.keys() or {} in self._held.values():
            raise InvariantError(f"entries and requests disagree on {held ^ self._sizes.keys()}")
        if not self._reserved.keys() <= held or (self._reserved and not self._step.is_open):
            raise InvariantError(f"reserved {sorted(self._reserved)}: without an entry, or without a step")

    # ---- the table

    def _name(self, request: Request, input_id: int) -> _Name | None:
        return self._held.get(request.request_id, {}).get(input_id)

    def _take_freed(self) -> list[_Name]:
        return self._freed.take(is_certain=not self._step.is_open)

    def _drop(self, name: _Name) -> None:
        """Make an end of an entry and have the workers told."""
        held = self._held[name.request_id]
        del held[name.input_id]
        if not held:
            del self._held[name.request_id]
        self._num_free += self._sizes.pop(name)
        self._reserved.pop(name, None)
        self._freed.add(name)
