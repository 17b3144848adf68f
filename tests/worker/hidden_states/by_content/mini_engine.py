"""An engine in two hundred lines around the real books and the real store: who calls what, and when.

    schedule   kv.begin_step, index.begin_step
                 a newcomer    kv.get_computed_blocks -> index.usable_prefix -> kv.allocate_slots -> index.reserve
                 others        kv.allocate_slots -> index.reserve
                 no room       the last that runs starts over; it has not been served in the step
               index.take_released, kv.launch_step
    execute    store.release -> store.write -> store.read -> store.commit, or store.withdraw and store.commit
    finish     kv.commit, index.commit with the report; or kv.withdraw, index.withdraw
               index.note_missing for whoever lacked rows, and it starts over

One step at a time. The model is `truth`: what a recompute gives for each position. Who wants rows gets those
behind its hit from the store and the others as they are computed; all must be true, and everybody must get done.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from mmcached.engine import KVCacheConfig, KVCacheManager, Request, RequestStatus
from mmcached.engine.hidden_states.tensor_prefix_index import NewBlockHashes, TensorPrefixIndex
from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.wire.messages.parts import RowsWanted
from mmcached.worker.hidden_states import RowChunk, RowSpan
from tests.worker.hidden_states.by_content.journeys import DIRECT, Journey
from tests.worker.hidden_states.by_content.pair import row_of, spec_of, truth, values_of


class Knobs(NamedTuple):
    """Attributes:
    num_blocks: of the KV pool.
    capacity: of the store, in blocks.
    token_budget: tokens per step.
    absent: how often a key has no rows in a step.
    failing: how often a step fails.
    journey: of the rows into the store.
    """

    block_size: int
    num_blocks: int
    capacity: int
    token_budget: int
    num_keys: int
    absent: float
    failing: float
    journey: Journey = DIRECT


@dataclass
class Client:
    """What a request has been given: by key and position."""

    request: Request
    wants: list[str]
    num_outputs: int
    generation: int = 0
    has_pending_token: bool = False
    rows: dict[str, dict[int, int]] = field(default_factory=dict)
    absent: set[tuple[str, int]] = field(default_factory=set)


class Chunk(NamedTuple):
    """Attributes:
    tokens: up to the chunk's end.
    """

    client: Client
    generation: int
    start: int
    tokens: tuple[int, ...]
    names: NewBlockHashes
    is_hit: bool
    samples: bool

    @property
    def end(self) -> int:
        return len(self.tokens)

    def prefixes(self) -> list[tuple[int, ...]]:
        """Return for each position of the chunk the tokens up to it."""
        return [self.tokens[: position + 1] for position in range(self.start, self.end)]

    def to_write(self) -> RowChunk:
        request_id = self.client.request.request_id
        return RowChunk(request_id, self.start, self.end - self.start, self.names.first_block, self.names.block_hashes)


class Plan(NamedTuple):
    step_id: int
    released: list[int]
    chunks: list[Chunk]


class Answer(NamedTuple):
    """Attributes:
    computed: keys that the model gave rows of.
    rows: by number of the chunk and key, the rows behind its hit.
    missing: the same where rows are lacking, and from which position on.
    """

    report: dict[bytes, dict[str, int]]
    computed: set[str]
    rows: dict[tuple[int, str], list[int]]
    missing: dict[tuple[int, str], int]
    has_failed: bool


class MiniEngine:
    def __init__(self, knobs: Knobs, rng: random.Random) -> None:
        self.knobs, self.rng = knobs, rng
        self.keys = [f"k{number}" for number in range(knobs.num_keys)]
        specs = [spec_of(key) for key in self.keys]
        budget = knobs.capacity * knobs.block_size * sum(spec.row_nbytes for spec in specs)
        self.kv = KVCacheManager(KVCacheConfig.of_one_group(knobs.num_blocks, knobs.block_size), 200)
        self.index = TensorPrefixIndex(knobs.block_size, max_blocks=1000)
        self.store = knobs.journey.make(knobs.block_size, specs, budget)
        self.waiting: deque[Client] = deque()
        self.running: list[Client] = []
        self.in_flight: deque[Plan] = deque()
        self.next_step = 0
        self.seen: Counter[str] = Counter()

    def add(self, request_id: int, prompt: list[int], num_outputs: int, wants: list[str]) -> None:
        request = Request(request_id, "generate", prompt, [], max_tokens=99, rows=RowsWanted(wants) if wants else None)
        self.waiting.append(Client(request, wants, num_outputs))

    def run(self, max_steps: int) -> None:
        """Play until everybody is done."""
        for _ in range(max_steps):
            if not (self.waiting or self.running or self.in_flight):
                return
            for _ in range(2):  # one that has only set somebody back is tried again
                if not self.in_flight:
                    self._schedule()
            self._finish(self._execute(self.in_flight[0]))
            self.index.check_integrity()
            self.store.check_integrity()
            assert self.index.holders() == {client.request.request_id for client in self.running}
        raise AssertionError(f"not done after {max_steps} steps: {self.running} {list(self.waiting)}")

    # ---- scheduling

    def _schedule(self) -> None:
        """Make a plan, which is in flight then; none if nobody can take part."""
        step_id, self.next_step = self.next_step, self.next_step + 1
        self.kv.begin_step(step_id)
        self.index.begin_step(step_id)
        chunks: list[Chunk] = []
        budget = self.knobs.token_budget
        num_preempted = self.seen["preempted"]
        for client in list(self.running):
            if budget and client in self.running and not client.has_pending_token:
                chunk = self._chunk(client, client.request.num_computed_tokens, budget, None)
                while chunk is None and self.running:
                    victim = self.running[-1]
                    self.seen["preempted"] += 1
                    self._set_back(victim)
                    if victim is client:
                        break
                    chunk = self._chunk(client, client.request.num_computed_tokens, budget, None)
                if chunk is not None and client in self.running:
                    chunks.append(chunk)
                    budget -= chunk.end - chunk.start
        while self.waiting and budget and self.seen["preempted"] == num_preempted:
            newcomer = self._admit(self.waiting[0], budget)
            if newcomer is None:
                break
            self.running.append(self.waiting.popleft())
            chunks.append(newcomer)
            budget -= newcomer.end - newcomer.start
        if not chunks:
            self.kv.withdraw(step_id)
            self.index.withdraw(step_id)
            return
        self.in_flight.append(Plan(step_id, self.index.take_released(), chunks))
        self.kv.launch_step(step_id)
        self.index.check_integrity()

    def _admit(self, client: Client, budget: int) -> Chunk | None:
        request, block_size = client.request, self.knobs.block_size
        hit, num_hit = self.kv.get_computed_blocks(request)
        num_usable = self.index.usable_prefix(request, num_hit, client.wants) // block_size * block_size
        self.seen["clamped"] += num_usable < num_hit
        if num_usable < num_hit:
            hit, num_usable = self.kv.get_computed_blocks(request, num_usable)
        self.seen["hit of a wish"] += bool(num_usable and client.wants)
        return self._chunk(client, num_usable, budget, hit)

    def _chunk(self, client: Client, start: int, budget: int, hit: KVCacheBlocks | None) -> Chunk | None:
        request = client.request
        end = min(request.num_tokens, start + budget)
        if end == start:
            return None
        num_hit = 0 if hit is None else start
        if self.kv.allocate_slots(request, end - start, num_hit, hit if num_hit else None) is None:
            return None
        needed = client.wants if hit is not None else ()
        names = self.index.reserve(request, start, end - start, written=self.keys, needed=needed)
        request.num_computed_tokens = end
        client.has_pending_token = end == request.num_tokens
        tokens = tuple(request.token_ids[:end])
        is_hit = bool(num_hit and client.wants)
        return Chunk(client, client.generation, start, tokens, names, is_hit, client.has_pending_token)

    # ---- the worker

    def _execute(self, plan: Plan) -> Answer:
        self.store.release(plan.released)
        self.rng.shuffle(plan.chunks)  # an engine's batch keeps no order
        outputs = {}
        for key in self.keys:
            if self.rng.random() >= self.knobs.absent:
                values = [truth(tokens, key) for chunk in plan.chunks for tokens in chunk.prefixes()]
                outputs[key] = torch.stack([row_of(value, spec_of(key)) for value in values])
        assert self.store.write([chunk.to_write() for chunk in plan.chunks], outputs) == []
        for tensor in outputs.values():
            tensor.fill_(-1)
        rows, missing = self._read_hits(plan)
        has_failed = self.rng.random() < self.knobs.failing
        if has_failed:
            self.store.withdraw()
        return Answer(self.store.commit(), set(outputs), rows, missing, has_failed)

    def _read_hits(self, plan: Plan) -> tuple[dict[tuple[int, str], list[int]], dict[tuple[int, str], int]]:
        rows: dict[tuple[int, str], list[int]] = {}
        missing: dict[tuple[int, str], int] = {}
        hits = [number for number, chunk in enumerate(plan.chunks) if chunk.is_hit]
        spans = [
            RowSpan(plan.chunks[number].client.request.request_id, 0, plan.chunks[number].start) for number in hits
        ]
        with self.store.read(spans, self.keys) as found:
            lacking = {(hits[each.span], each.key): each.first for each in found.missing()}
            for span, number in enumerate(hits):
                for key in plan.chunks[number].client.wants:
                    if (number, key) in lacking:
                        missing[number, key] = lacking[number, key]
                    else:
                        rows[number, key] = values_of(found.get(key, span), spec_of(key))
        return rows, missing

    # ---- the end of a step

    def _finish(self, answer: Answer) -> None:
        plan = self.in_flight[0]
        if answer.has_failed:
            self._withdraw(answer)
            return
        self.in_flight.popleft()
        self.kv.commit(plan.step_id)
        self.index.commit(plan.step_id, answer.report)
        for number, chunk in enumerate(plan.chunks):
            client = chunk.client
            if client not in self.running or client.generation != chunk.generation:
                continue
            lacking = [(key, first) for (which, key), first in answer.missing.items() if which == number]
            if lacking:
                self.seen["missing"] += 1
                for key, first in lacking:
                    self.index.note_missing(client.request, key, first)
                self._set_back(client)
                continue
            self._deliver(chunk, number, answer)
            if chunk.samples:
                self._sample(client)

    def _withdraw(self, answer: Answer) -> None:
        self.seen["withdrawn"] += 1
        first = self.in_flight[0].step_id
        lost = {*self.kv.withdraw(first)}
        self.index.withdraw(first, answer.report)
        lost |= {chunk.client.request.request_id for plan in self.in_flight for chunk in plan.chunks}
        self.in_flight.clear()
        for client in reversed([each for each in self.running if each.request.request_id in lost]):
            self._set_back(client)

    def _deliver(self, chunk: Chunk, number: int, answer: Answer) -> None:
        """Give a client the rows behind its hit, and those of its chunk as they were computed."""
        client = chunk.client
        for key in client.wants:
            own = client.rows.setdefault(key, {})
            for position, value in enumerate(answer.rows.get((number, key), [])):
                own[position] = value
                self.seen["rows from the store"] += 1
            if key in answer.computed:
                own.update({len(tokens) - 1: truth(tokens, key) for tokens in chunk.prefixes()})
            else:
                client.absent |= {(key, position) for position in range(chunk.start, chunk.end)}

    def _sample(self, client: Client) -> None:
        request = client.request
        request.append_output_token(truth(tuple(request.token_ids), "next token") % 2 + 1)
        client.has_pending_token = False
        if request.num_tokens - request.num_prompt_tokens == client.num_outputs:
            for key in client.wants:
                tokens = tuple(request.token_ids[:-1])
                for position in range(len(tokens)):
                    if (key, position) not in client.absent:
                        assert client.rows[key][position] == truth(tokens[: position + 1], key)
            request.status = RequestStatus.FINISHED
            self.kv.free(request)
            self.kv.free_block_hashes(request)
            self.index.release(request)
            self.running.remove(client)
            self.seen["done"] += 1

    def _set_back(self, client: Client) -> None:
        self.kv.free(client.request)
        self.index.release(client.request)
        self._requeue(client)

    def _requeue(self, client: Client) -> None:
        client.generation += 1
        client.has_pending_token = False
        client.rows.clear()
        client.absent.clear()
        client.request.num_computed_tokens = 0
        self.running.remove(client)
        self.waiting.appendleft(client)


def play(knobs: Knobs, seed: int, num_requests: int = 12) -> Counter[str]:
    """Have some requests with shared prefixes computed; return how often what happened."""
    rng = random.Random(seed)
    engine = MiniEngine(knobs, rng)
    prompts = [[rng.choice((1, 2)) for _ in range(rng.randint(1, 16))]]
    for request_id in range(num_requests):
        known = rng.choice(prompts)
        prompt = known[: rng.randint(1, len(known))] + [rng.choice((1, 2)) for _ in range(rng.choice([0, 0, 1, 5]))]
        prompts.append(prompt)
        engine.add(request_id, prompt, rng.randint(1, 6), [key for key in engine.keys if rng.random() < 0.7])
    engine.run(400)
    engine.seen["evicted"] = engine.store.stats().evictions
    engine.seen["dropped"] = engine.store.stats().dropped
    engine.seen["waits of readers"] = engine.store.stats().read_waits
    return engine.seen
