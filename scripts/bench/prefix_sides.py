"""Plays the steps of the caches of hidden states: rows, requests, room, and what each side does in a step.

The store, this repository's `OmniTensorPrefixCache` and vllm-omni's play the same steps with the same rows, as wide as
a 30B model's hidden states, and as much room. They are in the state of a long-running engine: memory has been touched,
and the store is full, so that every new block evicts one. What an engine hands to each side (chunks, slots, block
tables) is made beforehand and not timed. A sampler returns nanoseconds of CPU time.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from mmcached.compat.omni_tensor_prefix_cache import InputBatch, OmniTensorPrefixCache
from mmcached.worker.hidden_states import KeySpec, RowChunk, RowSpan, TensorPrefixStore
from scripts.bench.harness import Sampler, cpu_ns
from scripts.bench.peers import load_omni_class, load_omni_manager

BLOCK_SIZE = 16
HIDDEN_SIZE = 2_048
DTYPE = torch.bfloat16
ROW_BYTES = HIDDEN_SIZE * DTYPE.itemsize
BLOCK_BYTES = BLOCK_SIZE * ROW_BYTES

ROOM_BYTES = 512 << 20
NUM_BLOCKS = ROOM_BYTES // BLOCK_BYTES

PROMPT_TOKENS = 2 * BLOCK_SIZE
STEPS = BLOCK_SIZE
"""Decode steps of one sample: each request begins one block in them and completes one."""

PREFIX_REQUESTS = 64
PREFIX_TOKENS = 512

BUDGET_BYTES = 1 << 30
"""Of the caches whose memory is measured before their first use."""


KEY = "hidden_states"


class Side(Protocol):
    name: str

    def decode(self, num_requests: int) -> Sampler:
        """Return what a decode step takes: its rows are written, and each request gets its own."""

    def prefixes(self) -> Sampler:
        """Return what reading the prefixes of requests takes that begin behind a hit."""

    def fresh(self, num_bytes: int) -> object:
        """Return a cache with room for so many bytes of rows, not used yet."""


class Store:
    """The content-addressed store. Requests get the rows of the step itself, in one copy for all of them."""

    name = "ours"
    _reads_back = False

    def decode(self, num_requests: int) -> Sampler:
        store = self._full()
        prompts = [RowChunk(index, 0, PROMPT_TOKENS, 0, _names(2)) for index in range(num_requests)]
        for prompt in prompts:
            _write(store, [prompt], torch.zeros(PROMPT_TOKENS, HIDDEN_SIZE, dtype=DTYPE))
        rows = torch.rand(num_requests, HIDDEN_SIZE).to(DTYPE)
        position = PROMPT_TOKENS

        def sample() -> float:
            nonlocal position
            steps = []
            for at in range(position, position + STEPS):
                is_full = (at + 1) % BLOCK_SIZE == 0
                steps.append(
                    (
                        [
                            RowChunk(index, at, 1, at // BLOCK_SIZE, _names(1) if is_full else ())
                            for index in range(num_requests)
                        ],
                        [RowSpan(index, at, at + 1) for index in range(num_requests)],
                    )
                )
            position += STEPS

            def run() -> None:
                for chunks, spans in steps:
                    _write(store, chunks, rows)
                    if self._reads_back:
                        with store.read(spans, [KEY]) as found:
                            found.all(KEY)
                    else:
                        rows.clone().split_with_sizes([chunk.num_rows for chunk in chunks])

            return cpu_ns(run) / STEPS

        return sample

    def prefixes(self) -> Sampler:
        store = self._full()
        rows = torch.zeros(PREFIX_TOKENS, HIDDEN_SIZE, dtype=DTYPE)
        for index in range(PREFIX_REQUESTS):
            names = _names(PREFIX_TOKENS // BLOCK_SIZE)
            _write(store, [RowChunk(index, 0, PREFIX_TOKENS, 0, names)], rows)
        spans = [RowSpan(index, 0, PREFIX_TOKENS) for index in range(PREFIX_REQUESTS)]

        def run() -> None:
            with store.read(spans, [KEY]) as found:
                found.all(KEY)

        return lambda: cpu_ns(run)

    def fresh(self, num_bytes: int) -> object:
        spec = KeySpec(KEY, (HIDDEN_SIZE,), DTYPE)
        return TensorPrefixStore(BLOCK_SIZE, [spec], byte_budget=num_bytes)

    def _full(self) -> TensorPrefixStore:
        store = self.fresh(ROOM_BYTES)
        assert isinstance(store, TensorPrefixStore)
        num_blocks = 64
        rows = torch.zeros(num_blocks * BLOCK_SIZE, HIDDEN_SIZE, dtype=DTYPE)
        while not store.stats().evictions:
            _write(store, [RowChunk(-1, 0, len(rows), 0, _names(num_blocks))], rows)
            store.release([-1])
        return store


class StoreReadBack(Store):
    """The same, but each row goes through the store."""

    name = "ours, read back"
    _reads_back = True


@dataclass
class _Batch:
    """What a cache by slots sees of a step of requests, each with blocks of its own."""

    ids: list[str]
    table: torch.Tensor
    num_computed: np.ndarray
    scheduled: dict[str, int]
    starts: torch.Tensor

    @classmethod
    def of(cls, num_requests: int, blocks_each: int, num_computed: int) -> _Batch:
        ids = [str(index) for index in range(num_requests)]
        table = torch.randperm(NUM_BLOCKS)[: num_requests * blocks_each].view(num_requests, blocks_each)
        return cls(
            ids,
            table.to(torch.int32),
            np.full(num_requests, num_computed, dtype=np.int32),
            dict.fromkeys(ids, 1),
            torch.arange(num_requests + 1, dtype=torch.int32),
        )

    def slots(self, position: int) -> torch.Tensor:
        """Return the slots of all requests' rows of this position."""
        blocks = self.table[:, position // BLOCK_SIZE].to(torch.int64)
        return blocks * BLOCK_SIZE + position % BLOCK_SIZE


class Slots:
    """This repository's cache by slots. In a decode step requests get copies of the step's rows."""

    name = "ours, by slots"

    def decode(self, num_requests: int) -> Sampler:
        cache = self.fresh(ROOM_BYTES)
        blocks_each = (PROMPT_TOKENS + STEPS) // BLOCK_SIZE
        batch = _Batch.of(num_requests, blocks_each, PROMPT_TOKENS)
        rows = torch.rand(num_requests, HIDDEN_SIZE).to(DTYPE)
        slots = [batch.slots(PROMPT_TOKENS + at) for at in range(STEPS)]
        engine_batch = self._batch(batch)
        self._touch(cache)

        def run() -> None:
            for step_slots in slots:
                cache.update_omni_tensor_prefix_cache(rows, None, num_requests, step_slots)
                cache.get_merged_hidden_states(batch.starts, engine_batch, rows, batch.scheduled)

        return lambda: cpu_ns(run) / STEPS

    def prefixes(self) -> Sampler:
        cache = self.fresh(ROOM_BYTES)
        blocks_each = PREFIX_TOKENS // BLOCK_SIZE
        batch = _Batch.of(PREFIX_REQUESTS, blocks_each, PREFIX_TOKENS)
        rows = torch.zeros(PREFIX_REQUESTS, HIDDEN_SIZE, dtype=DTYPE)
        engine_batch = self._batch(batch)
        self._touch(cache)
        for request_id in batch.ids:
            cache.add_prefix_cached_new_req_id(request_id)

        def run() -> object:
            return cache.get_merged_hidden_states(batch.starts, engine_batch, rows, batch.scheduled)

        return lambda: cpu_ns(run)

    def fresh(self, num_bytes: int) -> Any:
        return OmniTensorPrefixCache(num_bytes // BLOCK_BYTES, BLOCK_SIZE, HIDDEN_SIZE, DTYPE)

    def _batch(self, batch: _Batch) -> Any:
        index_of = {request_id: index for index, request_id in enumerate(batch.ids)}
        return InputBatch(batch.ids, index_of, torch.from_numpy(batch.num_computed), batch.table)

    def _touch(self, cache: Any) -> None:
        """Write every slot once."""
        step = 64 * BLOCK_SIZE
        rows = torch.zeros(step, HIDDEN_SIZE, dtype=DTYPE)
        for first in range(0, NUM_BLOCKS * BLOCK_SIZE, step):
            cache.update_omni_tensor_prefix_cache(rows, None, step, torch.arange(first, first + step))


class Omni(Slots):
    """vllm-omni's. In a decode step requests get views of the step's rows. Raises `Unavailable`."""

    name = "vllm-omni"

    def __init__(self) -> None:
        self._class = load_omni_class()

    def fresh(self, num_bytes: int) -> Any:
        return self._class(num_bytes // BLOCK_BYTES, BLOCK_SIZE, HIDDEN_SIZE, DTYPE)

    def _batch(self, batch: _Batch) -> Any:
        return _vllm_batch(batch)


class OmniManager(Slots):
    """vllm-omni 0.30's manager, which copies at once on the CPU. Requests get views of a copy. Raises `Unavailable`."""

    name = "vllm-omni 0.30"

    def __init__(self) -> None:
        self._package = load_omni_manager()

    def decode(self, num_requests: int) -> Sampler:
        blocks_each = (PROMPT_TOKENS + STEPS) // BLOCK_SIZE
        batch = _Batch.of(num_requests, blocks_each, PROMPT_TOKENS)
        manager = self._manager(_vllm_batch(batch))
        rows = torch.rand(num_requests, HIDDEN_SIZE).to(DTYPE)
        step = _scheduled(batch)

        def run() -> None:
            for at in range(STEPS):
                batch.num_computed[:] = PROMPT_TOKENS + at
                self._step(manager, step, rows, batch.ids)

        return lambda: cpu_ns(run) / STEPS

    def prefixes(self) -> Sampler:
        blocks_each = PREFIX_TOKENS // BLOCK_SIZE
        batch = _Batch.of(PREFIX_REQUESTS, blocks_each + 1, 0)
        vllm_batch = _vllm_batch(batch)
        manager = self._manager(vllm_batch)
        rows = torch.zeros(PREFIX_TOKENS, HIDDEN_SIZE, dtype=DTYPE)
        for request_id in batch.ids:
            vllm_batch.req_ids = [request_id]
            self._step(manager, _scheduled(batch, {request_id: PREFIX_TOKENS}), rows, [request_id])
        vllm_batch.req_ids = batch.ids
        batch.num_computed[:] = PREFIX_TOKENS
        hits = [
            SimpleNamespace(req_id=request_id, num_computed_tokens=PREFIX_TOKENS, block_ids=[blocks])
            for request_id, blocks in zip(batch.ids, batch.table[:, :blocks_each].tolist(), strict=True)
        ]
        step = _scheduled(batch, new=hits, finished=batch.ids)

        def run() -> None:
            self._step(manager, step, rows[:PREFIX_REQUESTS], batch.ids)

        return lambda: cpu_ns(run)

    def fresh(self, num_bytes: int) -> Any:
        return self._manager(_vllm_batch(_Batch.of(1, 1, 0)), num_bytes // BLOCK_BYTES)

    def _manager(self, vllm_batch: Any, num_blocks: int = NUM_BLOCKS) -> Any:
        config = self._package.PrefixCacheConfig(num_blocks, BLOCK_SIZE, staging_capacity_tokens=1024)
        view = self._package.FullAttentionGroupView(vllm_batch, BLOCK_SIZE)
        return self._package.OmniPrefixCacheManager(config, view, eager=True)

    @staticmethod
    def _step(manager: Any, step: Any, rows: torch.Tensor, request_ids: list[str]) -> None:
        manager.new_step_starts(step)
        num_rows = len(rows)
        saved = manager.save_outputs(rows, None, num_tokens_unpadded=num_rows, num_tokens_padded=num_rows)
        manager.materialize(saved, request_ids)


def _scheduled(
    batch: _Batch, counts: dict[str, int] | None = None, *, new: Sequence[Any] = (), finished: Sequence[str] = ()
) -> Any:
    """Return what vLLM's scheduler says of a step."""
    counts = batch.scheduled if counts is None else counts
    return SimpleNamespace(finished_req_ids=finished, scheduled_new_reqs=new, num_scheduled_tokens=counts)


def _vllm_batch(batch: _Batch) -> Any:
    """Return a batch as vLLM's runner has it."""
    return SimpleNamespace(
        req_ids=batch.ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(batch.ids)},
        num_computed_tokens_cpu=batch.num_computed,
        block_table=_Groups([SimpleNamespace(block_table=SimpleNamespace(cpu=batch.table))]),
    )


class _Groups:
    """Block tables by KV group, as vLLM's input batch has them."""

    def __init__(self, groups: Sequence[Any]) -> None:
        self.block_tables = groups

    def __getitem__(self, index: int) -> Any:
        return self.block_tables[index]


def _names(num_blocks: int) -> list[bytes]:
    drawn = secrets.token_bytes(32 * num_blocks)
    return [drawn[start : start + 32] for start in range(0, len(drawn), 32)]


def _write(store: TensorPrefixStore, chunks: Sequence[RowChunk], rows: torch.Tensor) -> None:
    if store.write(chunks, {KEY: rows}):
        raise RuntimeError("the store has refused rows")
    store.commit()
