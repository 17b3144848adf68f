"""The store and its plain model, led through one history, compared after every action.

A row is a number that its key and the tokens up to its position decide, as a recompute would: `truth`. What the model
says is compared exactly; what is delivered is also held against the truth, which knows neither store nor model. A
replayed row comes with the same truth and some noise, as floats do, so that it shows which of two rows was kept.

Tensors that were handed in are overwritten afterwards. Rows that were read are looked at again later, until they are
released.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
import torch

from mmcached.wire.errors import MissingRows
from mmcached.worker.hidden_states import KeySpec, RefusedRows, RowChunk, RowSpan, RowsRead
from tests.worker.hidden_states.by_content.journeys import DIRECT, Journey
from tests.worker.hidden_states.by_content.plain_store import PlainStore
from tests.worker.integrity import check_prefix_store

NUMBERS = 1 << 30
_NOISE = 1 << 16
_STEP = 1 << 23
KINDS: list[tuple[tuple[int, ...], torch.dtype]] = [
    ((3,), torch.int32),
    ((), torch.int64),
    ((2, 2), torch.float64),
]
Tokens = tuple[int, ...]


class Setting(NamedTuple):
    """Attributes:
    capacity: in blocks, with the keys of the beginning.
    """

    block_size: int
    capacity: int
    num_keys: int
    journey: Journey = DIRECT


@dataclass
class Running:
    """A request: `computed` of its tokens have rows, or would have if there were room.

    Attributes:
        guessed: positions whose last row was that of another token.
    """

    request_id: int
    tokens: list[int]
    computed: int
    told: int = 0
    guessed: set[int] = field(default_factory=set)


def truth(tokens: Tokens, key: str) -> int:
    """Return what a recompute gives for the last of these tokens."""
    return int.from_bytes(hashlib.blake2b(repr((tokens, key)).encode(), digest_size=2).digest(), "little")


def name_of(tokens: Tokens) -> bytes:
    return hashlib.sha256(repr(tokens).encode()).digest()


def spec_of(key: str) -> KeySpec:
    shape, dtype = KINDS[int(key[1]) % len(KINDS)]
    return KeySpec(key, shape, dtype)


def row_of(value: int, spec: KeySpec) -> torch.Tensor:
    row = torch.arange(spec.row_nbytes // spec.dtype.itemsize, dtype=torch.int64) * _STEP + value
    return row.reshape(spec.shape).to(spec.dtype)


def values_of(rows: torch.Tensor, spec: KeySpec) -> list[int]:
    assert rows.shape[1:] == spec.shape
    assert rows.dtype == spec.dtype
    values = [int(row.reshape(-1)[0]) for row in rows]
    assert all(torch.equal(row, row_of(value, spec)) for row, value in zip(rows, values, strict=True))
    return values


class Pair:
    def __init__(self, setting: Setting) -> None:
        self.block_size = setting.block_size
        self.device = setting.journey.device
        self.is_direct = setting.journey == DIRECT
        self.keys = [f"k{index}" for index in range(setting.num_keys)]
        self.byte_budget = setting.capacity * self.block_size * sum(spec_of(key).row_nbytes for key in self.keys)
        schema = [spec_of(key) for key in self.keys]
        self.store = setting.journey.make(self.block_size, schema, self.byte_budget)
        self.plain = PlainStore(self.block_size, self.keys, setting.capacity)
        self.running: dict[int, Running] = {}
        self.contents: list[Tokens] = [()]
        self.listed: dict[bytes, dict[str, int]] = {}
        self.held: list[tuple[RowsRead, dict[tuple[str, int], list[int]]]] = []
        self.next_id = 0
        self.seen: Counter[str] = Counter()

    def do(self, action: str, number: int) -> None:
        """Do something, with what `number` decides; then compare."""
        ACTIONS[action](self, random.Random(number))
        self.seen[action] += 1
        self.compare()

    def compare(self) -> None:
        check_prefix_store(self.store)
        stats, plain = self.store.stats(), self.plain
        assert (stats.blocks, stats.sealed_blocks) == (len(plain.blocks), len(plain.sealed))
        assert (stats.evictable_blocks, stats.evictions) == (len(plain.evictable), plain.num_evictions)
        assert (stats.written, stats.replayed) == (plain.num_written, plain.num_replayed)
        assert stats.dropped == plain.num_dropped
        assert stats.blocks <= stats.capacity_blocks == plain.capacity
        assert stats.blocks * stats.block_nbytes <= self.byte_budget
        self.seen["calls with copies under way"] += stats.in_flight_nbytes > 0
        for rows, expected in self.held:
            for (key, span), values in expected.items():
                assert values_of(rows.get(key, span), spec_of(key)) == values, "a row changed after it was read"

    def come_to_rest(self) -> None:
        """When nothing happens any more, nothing stays under way."""
        self.store.reset()
        for _ in range(10_000):
            assert self.store.commit() == {}
            if not self.store.stats().in_flight_nbytes:
                break
        assert self.store.stats().in_flight_nbytes == 0
        check_prefix_store(self.store)

    # ---- requests

    def admit(self, rng: random.Random) -> None:
        """Begin a request with a new content or a known one, behind a hit."""
        shared = rng.choice(self.contents)
        tokens = shared[: rng.randint(0, len(shared))] if rng.random() < 0.5 else shared
        tokens += tuple(rng.choices((1, 2), k=rng.choice([0, 1, 1, 3, 8])))
        tokens = tokens or (1,)
        self.contents = [*self.contents[-7:], tokens]
        keys = rng.sample(self.keys, rng.randint(0, len(self.keys)))
        names, limit = self._names(tokens), len(tokens) - 1
        start = self.store.usable_prefix(names, limit, keys)
        assert start == self.plain.usable_prefix(names, limit, keys)
        if start % self.block_size:
            self.seen["hit within a block"] += 1
        if rng.random() < 0.2:  # a KV hit of somebody who wants no rows
            start = rng.randint(0, limit // self.block_size) * self.block_size
        self.seen["hit"] += start > 0
        self.running[self.next_id] = Running(self.next_id, list(tokens), start)
        self.next_id += 1

    def release(self, rng: random.Random) -> None:
        if self.running:
            self._release(rng.choice(list(self.running)))

    def attach(self, rng: random.Random) -> None:
        """Somebody reads a prefix without computing anything."""
        names = self._names(rng.choice(self.contents))
        request_id, self.next_id = self.next_id, self.next_id + 1
        self.store.attach(request_id, names)
        self.plain.attach(request_id, names)
        if names:
            self._read([RowSpan(request_id, 0, len(names) * self.block_size)], self.keys)
        self._commit()
        self.store.release([request_id])
        self.plain.release(request_id)

    # ---- steps

    def step(self, rng: random.Random) -> None:
        """Some requests compute, one or more writes; the step is committed or withdrawn."""
        taking_part: set[int] = set()
        for _ in range(rng.choice([1, 1, 2])):
            some = rng.sample(list(self.running), min(len(self.running), rng.randint(1, 3)))
            taking_part.update(some)
            self._write([self._chunk(self.running[request_id], rng) for request_id in some], rng)
            if self.is_direct or rng.random() < 0.3:
                self._read_all(rng)
        if rng.random() < 0.12:
            self.store.withdraw()
            self.plain.withdraw()
            self.seen["withdrawn"] += 1
            for request_id in taking_part:
                self._release(request_id)
        self._commit()
        if self.is_direct or rng.random() < 0.3:  # who reads everything, leaves nothing under way
            self._check_truth()

    def read(self, rng: random.Random) -> None:
        """Read anything, keep it for a while."""
        spans = []
        for _ in range(rng.randint(1, 4)):
            first = rng.randint(0, 12)
            request_id = rng.choice([*self.running, self.next_id])
            spans.append(RowSpan(request_id, first, first + rng.choice([1, 1, 2, 9])))
        self.held.append(self._read(spans, rng.sample(self.keys, rng.randint(1, len(self.keys)))))
        while len(self.held) > rng.randint(0, 2):
            self.held.pop(0)[0].release()

    def declare(self, rng: random.Random) -> None:
        """A key comes late, or turns out to be of another shape or dtype."""
        self.store.declare(spec_of(rng.choice(self.keys)))  # what is known already
        if rng.random() < 0.7:
            return
        again = rng.choice(self.keys)
        key = f"k{int(again[1]) + 1}" if rng.random() < 0.5 else again
        if key not in self.keys and len(self.keys) >= 4:
            return
        spec, former = spec_of(key), KeySpec(key, (5,), torch.int8)
        if key in self.keys:  # to something else, and back again
            self._declare(former, key)
        self._declare(spec, key)
        self.seen["declared late"] += 1

    def reset(self, rng: random.Random) -> None:
        if rng.random() < 0.3:
            self.store.reset()
            self.plain.reset()
            self.running.clear()
            self.listed.clear()

    # ---- inside

    def _names(self, tokens: Sequence[int], first: int = 0) -> list[bytes]:
        full = range(first, len(tokens) // self.block_size)
        return [name_of(tuple(tokens[: (index + 1) * self.block_size])) for index in full]

    def _release(self, request_id: int) -> None:
        self.running.pop(request_id, None)
        self.store.release([request_id])
        self.plain.release(request_id)

    def _chunk(self, request: Running, rng: random.Random) -> tuple[RowChunk, list[Tokens]]:
        """Return a chunk, and of each of its rows the tokens that it is the row of."""
        start, tokens = request.computed, request.tokens
        if start == len(tokens):
            tokens.append(rng.choice((1, 2)))
        if start and rng.random() < 0.15:
            start = rng.randint(0, start - 1)
            self.seen["replay"] += 1
        end = min(len(tokens), start + rng.choice([1, 2, 3, 5, 20]))
        end = max(end, min(start + 1, len(tokens)))
        guesses: list[int] = []
        if end == len(tokens) and rng.random() < 0.3:  # a drafter's tokens, all of them refused
            guesses = [3] * rng.randint(1, 4)
            self.seen["guesses"] += 1
        known = self._names(tokens)[: -(-end // self.block_size)]
        chunk = RowChunk(request.request_id, start, end + len(guesses) - start, request.told, known[request.told :])
        request.told = max(request.told, len(known))
        request.computed = max(request.computed, end)
        with_guesses = (*tokens[:end], *guesses)
        request.guessed -= set(range(start, end))
        request.guessed |= set(range(end, end + len(guesses)))
        return chunk, [with_guesses[: position + 1] for position in range(start, start + chunk.num_rows)]

    def _write(self, parts: Sequence[tuple[RowChunk, list[Tokens]]], rng: random.Random) -> None:
        if not parts:
            return
        chunks = [chunk for chunk, _ in parts]
        contents = [tokens for _, each in parts for tokens in each]
        numbers = {key: [truth(tokens, key) + _NOISE * rng.randint(0, 99) for tokens in contents] for key in self.keys}
        outputs: dict[str, object] = {}
        tensors: list[torch.Tensor] = []
        wrong: set[str] = set()
        for key in self.keys:
            spec = spec_of(key)
            rows = torch.stack([row_of(value, spec) for value in numbers[key]]).to(self.device)
            if rng.random() < 0.12:
                del numbers[key]
                self.seen["absent"] += 1
                if rng.random() < 0.5:
                    continue
                rows = rng.choice([rows.to(torch.int16), rows[:-1], rows.unsqueeze(-1)])
                wrong.add(key)
            outputs[key] = rows
            tensors.append(rows)
        refusals = self.store.write(chunks, outputs)
        assert {refusal.key for refusal in refusals} == wrong
        assert all(isinstance(refusal, RefusedRows) and refusal.request_id is None for refusal in refusals)
        self.plain.write(chunks, numbers)
        for tensor in tensors:
            tensor.fill_(-1)

    def _commit(self) -> None:
        report, expected = self.store.commit(), self.plain.commit()
        assert report == expected
        for name, rows in report.items():
            self.listed.pop(name, None)
            if rows:
                self.listed[name] = rows
        here = {name: self.plain.leading(name) for name in self.plain.sealed}
        assert self.listed == {name: rows for name, rows in here.items() if rows}

    def _read_all(self, rng: random.Random) -> None:
        spans = [RowSpan(each.request_id, 0, max(each.computed, 1)) for each in self.running.values()]
        if spans and rng.random() < 0.5:
            self._read(spans, self.keys)[0].release()

    def _read(self, spans: Sequence[RowSpan], keys: Sequence[str]) -> tuple[RowsRead, dict[tuple[str, int], list[int]]]:
        rows = self.store.read(spans, keys)
        found: dict[tuple[str, int], list[int]] = {}
        num_missing = 0
        for key in keys:
            at_once = rows.all(key)
            for number, span in enumerate(spans):
                expected = self.plain.read(span, key)
                if isinstance(expected, tuple):
                    num_missing += 1
                    assert at_once[number] is None
                    with pytest.raises(MissingRows) as raised:
                        rows.get(key, number)
                    assert raised.value.details == {"key": key, "first": expected[0], "end": expected[1]}
                else:
                    part = at_once[number]
                    assert part is not None
                    assert torch.equal(part, rows.get(key, number))
                    found[key, number] = values_of(rows.get(key, number), spec_of(key))
                    assert found[key, number] == expected
        assert len(list(rows.missing())) == num_missing
        return rows, found

    def _check_truth(self) -> None:
        """What anybody gets is what a recompute gives."""
        for request in self.running.values():
            if request.computed:
                spans = [RowSpan(request.request_id, at, at + 1) for at in range(request.computed)]
                rows, found = self._read(spans, self.keys)
                for (key, at), (value,) in found.items():
                    assert at in request.guessed or value % _NOISE == truth(tuple(request.tokens[: at + 1]), key)
                self.seen["true rows"] += len(found)
                rows.release()

    def _declare(self, spec: KeySpec, key: str) -> None:
        self.store.declare(spec)
        if key not in self.keys:
            self.keys = [*self.keys, key]
        for held, _ in self.held:
            held.release()
        self.held.clear()
        self.plain.declare(key, self.store.stats().capacity_blocks)
        self._commit()


ACTIONS: dict[str, Callable[[Pair, random.Random], None]] = {
    "admit": Pair.admit,
    "release": Pair.release,
    "attach": Pair.attach,
    "step": Pair.step,
    "read": Pair.read,
    "declare": Pair.declare,
    "reset": Pair.reset,
}
WEIGHTS = {"admit": 5, "release": 3, "attach": 1, "step": 10, "read": 3, "declare": 1, "reset": 1}


def lead(seed: int, num_actions: int, journey: Journey = DIRECT) -> Counter[str]:
    """Lead a random pair through so many actions; return how often what happened."""
    rng = random.Random(seed)
    setting = Setting(rng.choice([1, 2, 3, 4]), rng.choice([0, 1, 3, 6, 12, 50]), rng.randint(1, 3), journey)
    pair = Pair(setting)
    for action in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=num_actions):
        pair.do(action, rng.randrange(NUMBERS))
    stats = pair.store.stats()
    pair.seen["evicted"] = stats.evictions
    pair.seen["dropped"] = stats.dropped
    pair.seen["copies"] = stats.copies
    pair.seen["waits of readers"] = stats.read_waits
    pair.seen["waits for the limit"] = stats.limit_waits
    pair.come_to_rest()
    return pair.seen
