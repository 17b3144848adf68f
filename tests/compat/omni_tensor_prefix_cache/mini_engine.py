"""An engine of paged KV blocks that calls the cache as a runner does, beside `PlainCache`; one seed is one history.

Requests share prompts, hit prefixes of any length, are computed in chunks, preempted, resumed, aborted, and finish.
Blocks are taken again by others. Steps are padded or not, withdrawn or not staged now and then; outputs lie in one
buffer that is filled with garbage after every step, and so are results.

A row is `(content, step)`: what the tokens up to its position determine, and the step that computed it. Every row that
is delivered must have the content of its position, and be the very row that the plain cache names.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from mmcached.compat.omni_tensor_prefix_cache import InputBatch, MissingPrefix, MissingRun
from mmcached.wire.errors import InvalidRequest
from mmcached.worker import OmniTensorPrefixCache
from mmcached.worker.hidden_states.device_copy import TransferFor, transfer_for
from tests.compat.omni_tensor_prefix_cache.plain_cache import Found, PlainCache, Row

NUM_BLOCKS, BLOCK, WIDTH = 9, 4, 2
MAX_REQUESTS, MAX_CHUNK, MAX_LENGTH = 4, 9, 22
HIDDEN, ALWAYS, SPARSE, DEFERRED, CONSTANT = "hidden_states", "always", "sparse", "codes.audio", "constant"
KEYS = (ALWAYS, SPARSE, DEFERRED)
GARBAGE = -77


@dataclass
class Running:
    """A request; `hit` is the prefix that it was admitted with, if that is to be delivered in its next step."""

    req_id: str
    tokens: tuple[int, ...]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    hit: int | None = None
    is_aborted: bool = False

    def content(self, position: int) -> int:
        return hash(self.tokens[: position + 1]) & 0xFFFFFFFF


@dataclass(frozen=True)
class Played:
    """One step: what the worker was given, and what the model has made of it."""

    chunks: Sequence[tuple[Running, int]]
    hits: Mapping[str, int]
    batch: InputBatch
    starts: list[int]
    slots: list[int]
    rows: list[Row]
    padded: int | None
    emitted: list[str]
    hidden: torch.Tensor
    outputs: dict[str, Any]

    def own_rows(self, request: Running, count: int) -> list[Row]:
        start = self.starts[self.batch.req_id_to_index[request.req_id]]
        return self.rows[start : start + count]


class MiniEngine:
    def __init__(self, seed: int, cache: OmniTensorPrefixCache, *, declares: bool) -> None:
        self.draw = random.Random(seed)
        self.cache = cache
        self.plain = PlainCache([HIDDEN, *KEYS], DEFERRED, num_slots=NUM_BLOCKS * BLOCK, block_size=BLOCK)
        self.declares = declares
        for key in KEYS if declares else ():
            cache.declare(key, WIDTH, torch.int64)
        self.buffers = {key: torch.zeros((64, WIDTH), dtype=torch.int64) for key in (HIDDEN, *KEYS)}
        self.constant = torch.full((4, 3), 5)
        self.refs = [0] * NUM_BLOCKS
        self.kv: dict[int, int] = {}  # slot -> content of the position that was computed there
        self.running: list[Running] = []
        self.waiting: list[Running] = []
        self.finished: list[Running] = []
        self.row_of: dict[str, int] = {}
        self.number = 0
        self.delivered = 0
        self.missed = 0

    # ---- blocks

    def slot(self, request: Running, position: int) -> int:
        return self.plain.slot(request.blocks, position)

    def release(self, request: Running) -> None:
        for block in request.blocks:
            self.refs[block] -= 1

    def take_block(self) -> int | None:
        free = [block for block in range(NUM_BLOCKS) if not self.refs[block]]
        if not free:
            return None
        block = self.draw.choice(free)
        for slot in range(block * BLOCK, block * BLOCK + BLOCK):
            self.kv.pop(slot, None)
        self.refs[block] = 1
        return block

    def find_prefix(self, request: Running) -> tuple[list[int], int]:
        """Return blocks with the longest prefix; one that is not whole must be nobody else's."""
        blocks: list[int] = []
        length = 0
        for start in range(0, len(request.tokens) - 1, BLOCK):
            best, best_rows = -1, 0
            for block in range(NUM_BLOCKS):
                rows = 0
                while rows < BLOCK and start + rows < len(request.tokens) - 1:
                    if self.kv.get(block * BLOCK + rows) != request.content(start + rows):
                        break
                    rows += 1
                is_usable = rows == BLOCK or not self.refs[block]
                if is_usable and rows > best_rows and block not in blocks:
                    best, best_rows = block, rows
            if best < 0:
                break
            blocks.append(best)
            length += best_rows
            if best_rows < BLOCK:
                break
        return blocks, length

    def admit(self, request: Running, *, is_new: bool) -> None:
        blocks, length = self.find_prefix(request)
        if length and self.draw.random() < 0.3:  # a shorter hit, of whole blocks or within one that is free
            shorter = self.draw.randint(0, length)
            last = shorter // BLOCK
            if shorter % BLOCK == 0 or not self.refs[blocks[last]]:
                length = shorter
                blocks = blocks[: -(-length // BLOCK)]
        for block in blocks:
            self.refs[block] += 1
        for offset in range(length % BLOCK, BLOCK) if length % BLOCK else ():
            self.kv.pop(blocks[-1] * BLOCK + offset, None)
        request.blocks, request.computed = blocks, length
        # A resumed request is told as a hit or not: its rows before were delivered already.
        request.hit = length if length and (is_new or self.draw.random() < 0.5) else None
        self.running.append(request)

    def preempt(self, request: Running) -> None:
        self.release(request)
        self.running.remove(request)
        request.blocks, request.computed, request.hit = [], 0, None
        self.waiting.append(request)

    # ---- one step

    def step(self) -> None:
        self.number += 1
        draw = self.draw
        if len(self.running) + len(self.waiting) < MAX_REQUESTS and draw.random() < 0.7:
            shared = (1,) * draw.choice([0, 4, 8, 10])
            tail = tuple(draw.randint(0, 1) for _ in range(draw.randint(2, MAX_LENGTH - len(shared))))
            self.admit(Running(f"r{self.number}", shared + tail), is_new=True)
        elif self.waiting and draw.random() < 0.6:
            self.admit(self.waiting.pop(0), is_new=False)
        chunks = self.schedule()
        self.worker_step(chunks)

    def schedule(self) -> list[tuple[Running, int]]:
        chunks: list[tuple[Running, int]] = []
        for request in list(self.running):
            if request not in self.running:
                continue
            if self.draw.random() < 0.08:
                self.preempt(request)
                continue
            count = min(self.draw.choice([0, 1, 1, 2, 4, 5, MAX_CHUNK]), len(request.tokens) - request.computed)
            while request in self.running and len(request.blocks) * BLOCK < request.computed + count:
                block = self.take_block()
                if block is not None:
                    request.blocks.append(block)
                else:
                    scheduled = {chosen.req_id for chosen, _ in chunks}
                    others = [other for other in self.running if other.req_id not in scheduled]
                    self.preempt(self.draw.choice(others))
            if request in self.running and (count or request.hit is None):
                chunks.append((request, count))
        return chunks

    def worker_step(self, chunks: list[tuple[Running, int]]) -> None:
        cache, plain, draw = self.cache, self.plain, self.draw
        done, self.finished = self.finished, []
        if done:
            in_batch = [request for request in done if draw.random() < 0.9]  # the others have left it
            batch = self.batch([*in_batch, *(request for request, _ in chunks)])
            committed = [request.req_id for request in done if not request.is_aborted or draw.random() < 0.5]
            cache.commit_deferred_mm_outputs(committed, batch)
            plain.commit(committed)
            for request in done:
                plain.discard(request.req_id)
                cache.discard_deferred_mm_outputs(request.req_id)
        cache.reset_prefix_cached_new_req_ids()
        draw.shuffle(chunks)
        hits = {}
        for request, count in chunks:
            if request.hit is not None and count:
                cache.add_prefix_cached_new_req_id(request.req_id)
                hits[request.req_id], request.hit = request.hit, None
        self.compute(chunks, hits)

    def compute(self, chunks: Sequence[tuple[Running, int]], hits: Mapping[str, int]) -> None:
        played = self.forward(chunks, hits)
        self.write(played)
        self.stage(played)
        self.check(played)
        assert CONSTANT not in self.cache.mm_cache_keys, "a constant was taken for rows"
        self.end_step(chunks, played.slots)

    def forward(self, chunks: Sequence[tuple[Running, int]], hits: Mapping[str, int]) -> Played:
        """Fill the output buffers; requests stand in the order of `chunks`."""
        batch = self.batch([request for request, _ in chunks])
        starts = [0] * len(chunks)
        slots: list[int] = []
        rows: list[Row] = []
        for request, count in chunks:
            starts[batch.req_id_to_index[request.req_id]] = len(rows)
            for position in range(request.computed, request.computed + count):
                slots.append(self.slot(request, position))
                rows.append((request.content(position), self.number))
        padded = self.draw.choice([None, None, -(-len(rows) // 8) * 8])
        emitted = [
            HIDDEN,
            ALWAYS,
            *(key for key, share in ((DEFERRED, 0.9), (SPARSE, 0.7)) if self.draw.random() < share),
        ]
        outputs = {}
        for key in emitted:
            buffer = self.buffers[key]
            buffer[: len(rows)] = torch.tensor(rows, dtype=torch.int64).view(-1, WIDTH)
            outputs[key] = buffer[: self.draw.choice([len(rows), padded or len(rows)])]
        hidden = outputs.pop(HIDDEN)
        if self.draw.random() < 0.8:
            outputs[CONSTANT] = self.constant
        return Played(chunks, hits, batch, starts, slots, rows, padded, emitted, hidden, outputs)

    def write(self, played: Played) -> None:
        """Write the step's rows; now and then with a key whose width is wrong."""
        rows, outputs, is_narrow = played.rows, dict(played.outputs), False
        if rows and self.declares and self.draw.random() < 0.1:
            is_narrow, outputs[ALWAYS] = True, outputs[ALWAYS][:, :1]
        padding = (played.padded or len(rows)) - len(rows)
        mapping = torch.tensor([*played.slots, *[-1] * padding], dtype=torch.int64)
        with pytest.raises(InvalidRequest, match=ALWAYS) if is_narrow else nullcontext():
            self.cache.update_omni_tensor_prefix_cache(
                played.hidden, outputs, len(rows), mapping, played.padded, {DEFERRED}
            )
        mapping.fill_(0)  # the engine's buffer, too
        lacking = {DEFERRED, ALWAYS} if is_narrow else {DEFERRED}
        self.plain.write(played.slots, {key: rows for key in played.emitted if key not in lacking})

    def stage(self, played: Played) -> None:
        """Stage the step's rows of the deferred key, but now and then."""
        if self.draw.random() < 0.05:
            return
        counts = {request.req_id: count for request, count in played.chunks}
        self.cache.stage_deferred_mm_outputs(played.starts, played.batch, played.outputs, counts, {DEFERRED})
        if DEFERRED in played.emitted and played.rows:
            owners = [request.req_id for request, count in played.chunks for _ in range(count)]
            self.plain.stage(played.slots, owners, played.rows)

    def check(self, played: Played) -> None:
        """Compare what every request gets of every key, or lacks."""
        found, lacking = self.merge(played)
        for request, _ in played.chunks:
            self.plain.settle(self.slot(request, position) for position in range(played.hits.get(request.req_id, 0)))
        for buffer in self.buffers.values():
            buffer.fill_(GARBAGE)
        expected_lacking = {}
        for request, count in played.chunks:
            for key in (HIDDEN, *KEYS):
                expected = self.expected(played, request, count, key)
                if isinstance(expected, tuple):
                    expected_lacking[request.req_id, key] = expected
                rows = found.get(key, {}).get(request.req_id)
                if not isinstance(expected, list):
                    assert rows is None, (request.req_id, key)
                    continue
                assert rows is not None, (request.req_id, key)
                assert [tuple(row) for row in rows.tolist()] == expected, (request.req_id, key)
                first = 0 if request.req_id in played.hits else request.computed
                contents = [request.content(position) for position in range(first, first + len(expected))]
                assert rows[:, 0].tolist() == contents, "the rows are of other tokens"
                rows.fill_(GARBAGE)
                self.delivered += len(expected)
        assert lacking == expected_lacking
        self.missed += len(lacking)

    def expected(self, played: Played, request: Running, count: int, key: str) -> Found | None:
        """Return a request's rows of a key, the run that is missing, or None: it has none."""
        own = played.own_rows(request, count) if key in played.emitted else None
        if request.req_id not in played.hits:
            return own
        hit = played.hits[request.req_id]
        # A key that the step lacks, and the whole prefix too, is one that these tokens never had.
        has_any = any(self.slot(request, position) in self.plain.rows[key] for position in range(hit))
        if own is None and not has_any:
            return None
        if key not in (HIDDEN, *self.cache.mm_cache_keys):
            return (0, hit)
        prefix = self.plain.prefix(key, request.blocks, hit)
        return prefix + (own or []) if isinstance(prefix, list) else prefix

    def merge(self, played: Played) -> tuple[dict[str, Any], dict[tuple[str, str], tuple[int, int]]]:
        counts = {request.req_id: count for request, count in played.chunks}
        found: dict[str, Any] = {}
        runs: list[MissingRun] = []
        try:
            found[HIDDEN] = self.cache.get_merged_hidden_states(played.starts, played.batch, played.hidden, counts)
        except MissingPrefix as error:
            found[HIDDEN] = error.merged
            runs += error.missing
        try:
            found |= self.cache.get_merged_multimodal_states(played.starts, played.batch, played.outputs, counts)
        except MissingPrefix as error:
            found |= error.merged
            runs += error.missing
        return found, {(run.request_id, run.key): (run.first, run.end) for run in runs if run.key != CONSTANT}

    def end_step(self, chunks: Sequence[tuple[Running, int]], slots: Sequence[int]) -> None:
        if slots and self.draw.random() < 0.06:
            self.cache.forget_slots(torch.tensor(slots))
            self.plain.forget(slots)
            for slot in slots:
                self.kv.pop(slot, None)
            for request, count in chunks:
                if count:
                    self.preempt(request)
            return
        for request, count in chunks:
            for position in range(request.computed, request.computed + count):
                self.kv[self.slot(request, position)] = request.content(position)
            request.computed += count
            request.is_aborted = count > 0 and self.draw.random() < 0.04
            if request.computed == len(request.tokens) or request.is_aborted:
                self.running.remove(request)
                self.release(request)
                self.finished.append(request)
        self.cache.check_integrity()

    def batch(self, requests: Sequence[Running]) -> InputBatch:
        order = list(range(len(requests)))
        self.draw.shuffle(order)
        table = torch.zeros((len(requests), NUM_BLOCKS), dtype=torch.int32)
        computed = [0] * len(requests)
        for row, request in zip(order, requests, strict=True):
            table[row, : len(request.blocks)] = torch.tensor(request.blocks, dtype=torch.int32)
            computed[row] = request.computed
        index_of = {request.req_id: row for row, request in zip(order, requests, strict=True)}
        return InputBatch([request.req_id for request in requests], index_of, computed, table)


def run(seed: int, num_steps: int, *, declares: bool = True, transfer_for: TransferFor = transfer_for) -> MiniEngine:
    """Play one history.

    Args:
        declares: keys are declared; otherwise they are found by their lengths.

    Raises:
        AssertionError, MmcachedError: the cache has done what it must not.
    """
    cache = OmniTensorPrefixCache(NUM_BLOCKS, BLOCK, WIDTH, torch.int64, transfer_for=transfer_for)
    engine = MiniEngine(seed, cache, declares=declares)
    for _ in range(num_steps):
        engine.step()
    return engine
