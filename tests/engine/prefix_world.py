"""An engine's index beside a worker of dictionaries: random schedules, and what must hold after each action.

The worker is as plain as can be, and free to disappoint: it may write less than a chunk promises, and forget anything
at any time. What it has is known here row by row, so the index can be asked for what it may answer:

* a hit is usable up to the first row that is neither reported nor going to be written by the open step;
* what is listed is what was reported last, in this epoch;
* a worker that executes the plans as they come knows the names of every block that it is told to go on from.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from mmcached.cache.hashing.block_hash import extend_block_hashes
from mmcached.engine import Request, RequestStatus
from mmcached.engine.hidden_states.tensor_prefix_index import NewBlockHashes, TensorPrefixIndex
from mmcached.wire.messages.parts import RowsWanted
from tests.engine.integrity import check_index

NUMBERS = 1 << 30
KEYS = ("hidden_states", "codes")
Row = tuple[bytes, int, str]
MakeIndex = Callable[[int, int], TensorPrefixIndex]


class Setting(NamedTuple):
    block_size: int
    max_blocks: int


class Chunk(NamedTuple):
    request: Request
    start: int
    end: int
    names: NewBlockHashes
    num_nameable: int
    promised: frozenset[Row]
    is_nameless: bool


@dataclass
class Step:
    """A step and the plan that it becomes."""

    step_id: int
    epoch: int
    chunks: list[Chunk] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    is_launched: bool = False


@dataclass
class Hit:
    """Rows behind which somebody was admitted, in an epoch, and whether its first chunk has been computed."""

    rows: frozenset[Row]
    epoch: int
    is_served: bool = False


def make_index(block_size: int, max_blocks: int) -> TensorPrefixIndex:
    return TensorPrefixIndex(block_size, max_blocks=max_blocks)


class World:
    def __init__(self, setting: Setting, make: MakeIndex = make_index) -> None:
        self.block_size = setting.block_size
        self.is_roomy = setting.max_blocks >= 1000
        self.index = make(setting.block_size, setting.max_blocks)
        self.written: set[Row] = set()  # rank 0: rows by content, and the names that it was told of each request
        self.named: dict[int, list[bytes]] = {}
        self.listed: dict[bytes, dict[str, int]] = {}
        self.step: Step | None = None
        self.running: dict[int, Request] = {}
        self.waiting: list[Request] = []
        self.hits: dict[int, Hit] = {}
        self.released: list[int] = []
        self.contents: list[tuple[int, ...]] = [(1, 2, 1, 2, 1, 2, 1, 2, 1)]
        self.next_id = self.next_step = self.epoch = 0
        self.seen: Counter[str] = Counter()

    def do(self, action: str, number: int) -> None:
        """Do something, with what `number` decides; then check."""
        ACTIONS[action](self, random.Random(number))
        self.seen[action] += 1
        self.check()

    def check(self) -> None:
        check_index(self.index)
        assert self.index.holders() == set(self.running)
        if self.is_roomy:
            assert self.index.stats().blocks == len(self.listed)
        there = self._listed_rows() | self._promised_rows()
        for request_id, hit in self.hits.items():
            if hit.epoch == self.epoch and not hit.is_served:
                assert hit.rows <= there, f"request {request_id} stands behind rows that nobody will write"

    # ---- requests

    def arrive(self, rng: random.Random) -> None:
        shared = rng.choice(self.contents)
        tokens = shared[: rng.randint(1, len(shared))] + tuple(rng.choices((1, 2), k=rng.randint(0, 6)))
        self.contents = [*self.contents[-5:], tokens]
        request = Request(self.next_id, "generate", tokens, [], max_tokens=1, rows=RowsWanted())
        extend_block_hashes(request, self.block_size)
        self.next_id += 1
        self.waiting.append(request)

    def admit(self, rng: random.Random) -> None:
        """Schedule a waiting request behind what can be used of a KV hit, which may be any."""
        step = self._building()
        if step is None or not self.waiting:
            return
        request = self.waiting.pop(rng.randrange(len(self.waiting)))
        needed = [key for key in KEYS if rng.random() < 0.6]
        full = len(request.block_hashes) * self.block_size
        kv_hit = min(rng.choice([full, rng.randint(0, full)]), request.num_tokens - 1)
        usable = self.index.usable_prefix(request, kv_hit, needed)
        if self.is_roomy:
            assert usable == self._usable(request, kv_hit, needed)
        else:
            assert usable <= self._usable(request, kv_hit, needed)
        start = usable if rng.random() < 0.7 else usable // self.block_size * self.block_size
        rows = frozenset(self._rows(request, 0, start, needed))
        self.seen["hit"] += bool(rows)
        self.seen["hit within a block"] += bool(rows) and start % self.block_size > 0
        self.seen["hit on what is only reserved"] += bool(rows - self._listed_rows())
        self.hits[request.request_id] = Hit(rows, self.epoch)
        request.status = RequestStatus.RUNNING
        self.running[request.request_id] = request
        self._schedule(step, request, start, rng, needed)

    def go_on(self, rng: random.Random) -> None:
        """Schedule the next chunk of a running request."""
        step = self._building()
        idle = [request for request in self.running.values() if request.request_id not in self._taking_part()]
        if step is not None and idle:
            request = rng.choice(idle)
            if request.num_computed_tokens >= request.num_tokens:
                request.append_output_token(rng.choice((1, 2)))
                extend_block_hashes(request, self.block_size)
            self._schedule(step, request, request.num_computed_tokens, rng, ())

    def end(self, rng: random.Random) -> None:
        """A request that takes part in no step finishes, is aborted or set back."""
        free = [request for request in self.running.values() if request.request_id not in self._taking_part()]
        if not free:
            return
        request = rng.choice(free)
        self.index.release(request)
        if rng.random() < 0.5:
            self._set_back(request.request_id)
            return
        request.status = RequestStatus.FINISHED
        self.index.release(request)
        self._forget(request.request_id)

    # ---- steps

    def begin(self, rng: random.Random) -> None:
        if self.step is None:
            self.index.begin_step(self.next_step)
            self.step = Step(self.next_step, self.epoch)
            self.next_step += 1

    def launch(self, rng: random.Random) -> None:
        """Hand over the plan; the worker will have it."""
        step = self._building()
        if step is not None:
            step.released = self.index.take_released()
            assert sorted(step.released) == sorted(set(self.released))
            self.released = []
            step.is_launched = True

    def commit(self, rng: random.Random) -> None:
        """The worker has executed the step, and reports."""
        step = self.step
        if step is None or not step.is_launched:
            return
        self.step = None
        report = self._execute(step, rng)
        self.index.commit(step.step_id, report)
        for chunk in step.chunks:
            if chunk.request.request_id in self.hits:
                self.hits[chunk.request.request_id].is_served = True
        if step.epoch == self.epoch:
            self._take(report, {row for chunk in step.chunks for row in chunk.promised})

    def withdraw(self, rng: random.Random) -> None:
        """The step has failed; perhaps rank 0 has executed it all the same. All who took part start over."""
        step, self.step = self.step, None
        if step is None:
            return
        report = None
        if step.is_launched and rng.random() < 0.5:
            report = self._execute(step, rng)
            for name, rows in report.items():
                if step.epoch == self.epoch and name in self.listed:
                    self._take({name: {key: min(n, rows.get(key, 0)) for key, n in self.listed[name].items()}})
        self.index.withdraw(step.step_id, report)
        self.released = step.released + self.released
        for chunk in step.chunks:
            if chunk.request.request_id in self.running:
                self.index.release(chunk.request)
                self._set_back(chunk.request.request_id)

    def note_missing(self, rng: random.Random) -> None:
        if self.running and self.step is None:
            request = rng.choice(list(self.running.values()))
            first = rng.randrange(request.num_tokens)
            index, num = divmod(first, self.block_size)
            if index >= len(request.block_hashes):
                return
            name = request.block_hashes[index]
            self.index.note_missing(request, KEYS[0], first)
            if self.listed.get(name, {}).get(KEYS[0], 0) > num:
                self._take({name: {**self.listed[name], KEYS[0]: num}})
            self.index.release(request)
            self._set_back(request.request_id)
            self.waiting.remove(request)  # it counts on listed rows only: the formula of `_usable` is not for it
            request.status = RequestStatus.ABORTED
            self.index.release(request)

    def new_epoch(self, rng: random.Random) -> None:
        if self._building() is None and rng.random() < 0.3:
            self.epoch += 1
            assert self.index.new_epoch() == self.epoch
            self.listed.clear()
            self.written.clear()
            self.named.clear()

    def reset(self, rng: random.Random) -> None:
        if rng.random() < 0.2:
            self.index.reset()
            self.listed.clear()
            self.step = None
            self.released.clear()
            self.hits.clear()
            self.written.clear()
            self.named.clear()
            for request_id in list(self.running):
                self._set_back(request_id)
            self.released.clear()

    # ---- the worker

    def _execute(self, step: Step, rng: random.Random) -> dict[bytes, dict[str, int]]:
        """Execute a plan as it stands; return what has changed, one way or another."""
        if step.epoch != self.epoch:
            return {rng.randbytes(32): {KEYS[0]: 1} for _ in range(2)}  # content of a former epoch
        for request_id in step.released:
            self.named.pop(request_id, None)
        touched: set[bytes] = set()
        for chunk in step.chunks:
            known = self.named.setdefault(chunk.request.request_id, [])
            if not chunk.is_nameless:
                assert chunk.names.first_block <= len(known), "a gap before the names of a chunk"
                if chunk.names.block_hashes:
                    known[chunk.names.first_block :] = chunk.names.block_hashes
                assert known == chunk.request.block_hashes[: len(known)]
                assert len(known) >= chunk.num_nameable
            keeps = rng.choice([1.0, 1.0, 0.7])
            self.written |= {row for row in sorted(chunk.promised) if rng.random() < keeps}
            touched |= {row[0] for row in chunk.promised}
        if rng.random() < 0.4:
            lost = {name for name, _, _ in sorted(self.written) if rng.random() < 0.3}
            self.written = {row for row in self.written if row[0] not in lost}
            touched |= lost
        return {name: self._leading(name) for name in sorted(touched)}

    def _leading(self, name: bytes) -> dict[str, int]:
        counts: dict[str, int] = {}
        for key in KEYS:
            num = 0
            while (name, num, key) in self.written:
                num += 1
            if num or len(counts) % 2:  # zero and absent are the same
                counts[key] = num
        return counts

    # ---- inside

    def _building(self) -> Step | None:
        return self.step if self.step is not None and not self.step.is_launched else None

    def _taking_part(self) -> set[int]:
        return {chunk.request.request_id for chunk in self.step.chunks} if self.step is not None else set()

    def _schedule(
        self, step: Step, request: Request, start: int, rng: random.Random, needed: list[str] | tuple[()]
    ) -> None:
        end = min(request.num_tokens, start + rng.choice([1, 3, 7, 20]))
        written = [key for key in KEYS if rng.random() < 0.9]
        names = self.index.reserve(request, start, end - start, written=written, needed=needed)
        is_of_this_epoch = self.hits[request.request_id].epoch == self.epoch
        promised = frozenset(self._rows(request, start, end, written)) if is_of_this_epoch else frozenset()
        assert is_of_this_epoch or not names.block_hashes
        num_nameable = min(-(-end // self.block_size), len(request.block_hashes))
        step.chunks.append(Chunk(request, start, end, names, num_nameable, promised, not is_of_this_epoch))
        request.num_computed_tokens = end

    def _rows(self, request: Request, start: int, end: int, keys: list[str] | tuple[()]) -> set[Row]:
        digests = request.block_hashes
        positions = range(start, min(end, len(digests) * self.block_size))
        return {(digests[at // self.block_size], at % self.block_size, key) for at in positions for key in keys}

    def _listed_rows(self) -> set[Row]:
        return {
            (name, at, key) for name, counts in self.listed.items() for key, num in counts.items() for at in range(num)
        }

    def _promised_rows(self) -> set[Row]:
        if self.step is None or self.step.epoch != self.epoch:
            return set()
        return {row for chunk in self.step.chunks for row in chunk.promised}

    def _usable(self, request: Request, num_tokens: int, keys: list[str]) -> int:
        there = self._listed_rows() | self._promised_rows()
        for position in range(num_tokens if keys else 0):
            rows = self._rows(request, position, position + 1, keys)
            if not rows or not rows <= there:
                return position
        return num_tokens

    def _take(self, report: dict[bytes, dict[str, int]], promised: Set[Row] = frozenset()) -> None:
        """Take a report into the model: the last word on each block.

        Args:
            promised: in the step that this is the report of.
        """
        before = self._listed_rows()
        for name, counts in report.items():
            self.listed.pop(name, None)
            if any(counts.values()):
                self.listed[name] = {key: num for key, num in counts.items() if num}
        # What a worker has lost, or not written, is found out by those who stand behind it.
        there = self._listed_rows()
        broken = (before | promised) - there
        for hit in self.hits.values():
            if hit.rows & broken:
                hit.rows = frozenset()

    def _set_back(self, request_id: int) -> None:
        request = self.running[request_id]
        self._forget(request_id)
        request.num_computed_tokens = 0
        request.status = RequestStatus.WAITING
        self.waiting.append(request)

    def _forget(self, request_id: int) -> None:
        del self.running[request_id]
        self.hits.pop(request_id, None)
        self.released.append(request_id)


ACTIONS: dict[str, Callable[[World, random.Random], None]] = {
    "arrive": World.arrive,
    "admit": World.admit,
    "go_on": World.go_on,
    "end": World.end,
    "begin": World.begin,
    "launch": World.launch,
    "commit": World.commit,
    "withdraw": World.withdraw,
    "note_missing": World.note_missing,
    "new_epoch": World.new_epoch,
    "reset": World.reset,
}
WEIGHTS = {
    "arrive": 6,
    "admit": 10,
    "go_on": 6,
    "end": 4,
    "begin": 6,
    "launch": 5,
    "commit": 5,
    "withdraw": 1,
    "note_missing": 1,
    "new_epoch": 1,
    "reset": 1,
}


def lead(seed: int, num_actions: int, make: MakeIndex = make_index) -> Counter[str]:
    """Lead a random world through so many actions; return how often what happened."""
    rng = random.Random(seed)
    world = World(Setting(rng.choice([1, 2, 3, 4]), rng.choice([1000, 1000, 5])), make)
    for action in rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=num_actions):
        world.do(action, rng.randrange(NUMBERS))
    return world.seen
