"""Samples the paths of a KV cache manager, written once for both sides.

A `Book` is a manager in a state: its pool full of published content, some requests running. Each function makes a
sampler of CPU time out of a side's calls. The loop of the caller, and the counter that it moves, are part of every
figure. Those in steps run inside `begin_step` and `commit`, as the service's scheduler does; vLLM has no such calls.
"""

from __future__ import annotations

import gc
import hashlib
import random
import secrets
import struct
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from scripts.bench.harness import Sampler, cpu_ns
from scripts.bench.sides import BLOCK_SIZE, PLAIN, Kind, Side

REQUEST_BLOCKS = 64
PROMPT_TOKENS = 256
_DIGEST_BYTES = 32


class Book:
    """A manager and what was put into it.

    Args:
        num_blocks: of each group.

    Attributes:
        first_slots: the manager's `allocate_slots` for a request's first step, which follows its encoder.
        known: requests of `REQUEST_BLOCKS` blocks whose content is published, up to `NUM_KNOWN`, spread over the pool.
        step_ids: one for each step that somebody opens.
    """

    NUM_KNOWN = 64

    def __init__(self, side: Side, num_blocks: int, kind: Kind = PLAIN) -> None:
        self.side = side
        self.num_blocks = num_blocks
        self.manager = side.kv_manager(num_blocks * len(kind.groups), kind)
        self.first_slots = self.manager.allocate_slots
        if kind.num_encoder_tokens:
            self.first_slots = partial(self.manager.allocate_slots, num_encoder_tokens=kind.num_encoder_tokens)
        self.known: list[Any] = []
        self.step_ids = count(1)

    @classmethod
    def full(cls, side: Side, num_blocks: int, kind: Kind = PLAIN) -> Book:
        """Return one where every free block has published content, so that a new block evicts."""
        book = cls(side, num_blocks, kind)
        num_requests = num_blocks // REQUEST_BLOCKS + 1
        stride = max(1, num_requests // cls.NUM_KNOWN)
        for index in range(num_requests):
            request = book.request(REQUEST_BLOCKS)
            book.publish(request)
            book.manager.take_events()
            # The first is gone, in part, when the pool is full.
            if index and index % stride == 0 and len(book.known) < cls.NUM_KNOWN:
                book.known.append(request)
        return book

    def request(self, num_blocks: int, *, num_tokens: int | None = None) -> Any:
        """Return a request whose content nobody has; it holds nothing yet."""
        drawn = secrets.token_bytes(num_blocks * _DIGEST_BYTES)
        digests = [drawn[start : start + _DIGEST_BYTES] for start in range(0, len(drawn), _DIGEST_BYTES)]
        return self.side.request([0] * (num_tokens or num_blocks * BLOCK_SIZE), digests)

    def publish(self, request: Any) -> None:
        """Compute a request whole, and free it."""
        self.first_slots(request, request.num_tokens)
        self.manager.free(request)

    def start_decoding(self, num_running: int, num_steps: int) -> list[Any]:
        """Return requests whose prompts have been computed. The tokens of the steps to come are known already.

        Raises:
            RuntimeError: they do not fit.
        """
        num_tokens = PROMPT_TOKENS + num_steps
        requests = [self.request(num_tokens // BLOCK_SIZE, num_tokens=num_tokens) for _ in range(num_running)]
        for request in requests:
            if self.first_slots(request, PROMPT_TOKENS) is None:
                raise RuntimeError(f"{num_running} requests do not fit into {self.num_blocks} blocks")
            request.num_computed_tokens = PROMPT_TOKENS
        return requests


NUM_BLOCKS = 16_384
LONG_TOKENS = 100_000
LONG_HIT = (LONG_TOKENS - 1) // BLOCK_SIZE
CHUNKED_TOKENS = 131_072
CHUNK_TOKENS = 2_048
HASHED_TOKENS = 1_024
LARGE_POOL = 200_000
HASH_CALLS = 10
CYCLES = 32
DECODE_CALLS = 4_096
BLOCKED_STEPS = 3
NEIGHBOUR_BLOCKS = 1_024


def long_hit(side: Side) -> Sampler:
    """A lookup that finds everything it may."""
    book = Book(side, NUM_BLOCKS)
    request = book.request(LONG_TOKENS // BLOCK_SIZE)
    book.publish(request)
    if book.manager.get_computed_blocks(request)[1] != LONG_HIT * BLOCK_SIZE:
        raise RuntimeError(f"{side.name}: not {LONG_HIT} blocks found")
    return lambda: cpu_ns(lambda: book.manager.get_computed_blocks(request))


def cycle(book: Book) -> Sampler:
    """A request that nobody has seen: looked up, given blocks, published and freed; every block evicts one."""
    manager, first_slots = book.manager, book.first_slots

    def run(requests: list[Any]) -> None:
        for request in requests:
            found = manager.get_computed_blocks(request)
            first_slots(request, request.num_tokens - found[1], found[1], found[0])
            manager.free(request)

    return lambda: _per_block(book, run)


def committed_cycle(book: Book) -> Sampler:
    """The same, each request in a step of its own."""
    manager, first_slots, step_ids = book.manager, book.first_slots, book.step_ids

    def run(requests: list[Any]) -> None:
        for request, step_id in zip(requests, step_ids, strict=False):
            manager.begin_step(step_id)
            found = manager.get_computed_blocks(request)
            first_slots(request, request.num_tokens - found[1], found[1], found[0])
            manager.commit(step_id)
            manager.free(request)

    return lambda: _per_block(book, run)


def told_cycle(book: Book) -> Sampler:
    """As `cycle`, with events on, which are taken after each request."""
    manager = book.manager

    def run(requests: list[Any]) -> None:
        for request in requests:
            found = manager.get_computed_blocks(request)
            manager.allocate_slots(request, request.num_tokens - found[1], found[1], found[0])
            manager.free(request)
            manager.take_events()

    return lambda: _per_block(book, run)


def decode(book: Book, num_running: int) -> Sampler:
    """One token more for each running request, step after step; one block more every 16th time."""
    manager = book.manager

    def run(requests: list[Any], num_steps: int) -> None:
        for _ in range(num_steps):
            for request in requests:
                manager.allocate_slots(request, 1)
                request.num_computed_tokens += 1

    return lambda: _per_token(book, num_running, run)


def committed_decode(book: Book, num_running: int) -> Sampler:
    """The same, with `begin_step` and `commit` around every step."""
    manager, step_ids = book.manager, book.step_ids

    def run(requests: list[Any], num_steps: int) -> None:
        for step_id, _ in zip(step_ids, range(num_steps), strict=False):
            manager.begin_step(step_id)
            for request in requests:
                manager.allocate_slots(request, 1)
            manager.commit(step_id)
            for request in requests:
                request.num_computed_tokens += 1

    return lambda: _per_token(book, num_running, run)


def chunked(side: Side) -> Sampler:
    """A long prompt, chunk after chunk, into blocks without content; nothing is found, all is published."""
    book = Book(side, NUM_BLOCKS)
    manager, request = book.manager, book.request(CHUNKED_TOKENS // BLOCK_SIZE)

    def run() -> None:
        for _ in range(CHUNKED_TOKENS // CHUNK_TOKENS):
            manager.allocate_slots(request, CHUNK_TOKENS)
            request.num_computed_tokens += CHUNK_TOKENS

    return lambda: _whole_prompt(book, request, run)


def committed_chunks(side: Side) -> Sampler:
    """The same, each chunk in a step of its own."""
    book = Book(side, NUM_BLOCKS)
    manager, request = book.manager, book.request(CHUNKED_TOKENS // BLOCK_SIZE)

    def run() -> None:
        for step_id in range(CHUNKED_TOKENS // CHUNK_TOKENS):
            manager.begin_step(step_id)
            manager.allocate_slots(request, CHUNK_TOKENS)
            manager.commit(step_id)
            request.num_computed_tokens += CHUNK_TOKENS

    return lambda: _whole_prompt(book, request, run)


def hashing(side: Side) -> Sampler:
    """All blocks of a prompt of text, hashed from the first on."""
    hash_all = side.hasher(random.Random(0).choices(range(150_000), k=HASHED_TOKENS))

    def run() -> None:
        for _ in range(HASH_CALLS):
            hash_all()

    return lambda: cpu_ns(run) / HASH_CALLS


def large_pool(side: Side) -> Sampler:
    """A manager is made while the collector leaves the rest of the process alone."""

    def sample() -> float:
        taken = cpu_ns(lambda: side.kv_manager(LARGE_POOL, PLAIN))
        gc.collect()
        return taken

    return sample


def large_pool_at_start(side: Side) -> Sampler:
    """The same in a process that is starting up: what it has imported is walked whenever the collector runs."""
    make = large_pool(side)

    def sample() -> float:
        gc.unfreeze()
        taken = make()
        gc.freeze()
        return taken

    return sample


def blocked(side: Side) -> Sampler:
    """The first waiting request finds its prefix, and no block is free for the rest; it is asked again every step.

    Between two steps a neighbour publishes a block: a result kept from the step before must survive that.
    """
    book = Book(side, LONG_TOKENS // BLOCK_SIZE + NEIGHBOUR_BLOCKS + 1)
    manager, holder, neighbour = book.manager, book.request(LONG_TOKENS // BLOCK_SIZE), book.request(NEIGHBOUR_BLOCKS)
    manager.allocate_slots(holder, LONG_TOKENS)
    side.reserve(manager, neighbour)
    waiting = side.request([0] * LONG_TOKENS, holder.block_hashes)
    published = iter(range(BLOCK_SIZE, (NEIGHBOUR_BLOCKS + 1) * BLOCK_SIZE, BLOCK_SIZE))

    def step() -> object:
        found = manager.get_computed_blocks(waiting)
        return manager.allocate_slots(waiting, LONG_TOKENS - found[1], found[1], found[0])

    def sample() -> float:
        taken = 0
        for _ in range(BLOCKED_STEPS):
            manager.cache_blocks(neighbour, next(published))
            taken += cpu_ns(step)
        return taken / BLOCKED_STEPS

    if step() is not None:
        raise RuntimeError(f"{side.name}: the waiting request is not blocked")
    return sample


def packed_tokens() -> Sampler:
    """SHA-256 over packed tokens: the plainest loop for `hashing`."""
    token_ids = random.Random(0).choices(range(150_000), k=HASHED_TOKENS)
    pack = struct.Struct(f"<{HASHED_TOKENS}I").pack
    block_bytes = 4 * BLOCK_SIZE

    def run() -> list[bytes]:
        packed = pack(*token_ids)
        digest = bytes(_DIGEST_BYTES)
        found = []
        for start in range(0, len(packed), block_bytes):
            digest = hashlib.sha256(digest + packed[start : start + block_bytes]).digest()
            found.append(digest)
        return found

    def many() -> None:
        for _ in range(HASH_CALLS):
            run()

    return lambda: cpu_ns(many) / HASH_CALLS


def dict_alone() -> Sampler:
    """One dict and no more: the plainest loop for `long_hit`."""
    digests = [secrets.token_bytes(_DIGEST_BYTES) for _ in range(LONG_HIT)]
    block_ids = {digest: block_id for block_id, digest in enumerate(digests, 1)}

    def run() -> list[int]:
        found = []
        for digest in digests:
            block_id = block_ids.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    return lambda: cpu_ns(run)


def _per_block(book: Book, run: Callable[[list[Any]], None]) -> float:
    requests = [book.request(REQUEST_BLOCKS) for _ in range(CYCLES)]
    return cpu_ns(lambda: run(requests)) / (CYCLES * REQUEST_BLOCKS)


def _per_token(book: Book, num_running: int, run: Callable[[list[Any], int], None]) -> float:
    num_steps = max(BLOCK_SIZE, DECODE_CALLS // num_running)
    requests = book.start_decoding(num_running, num_steps)
    taken = cpu_ns(lambda: run(requests, num_steps))
    for request in requests:
        book.manager.free(request)
    return taken / (num_running * num_steps)


def _whole_prompt(book: Book, request: Any, run: Callable[[], None]) -> float:
    request.num_computed_tokens = 0
    taken = cpu_ns(run)
    book.manager.free(request)
    if not book.manager.reset_prefix_cache():
        raise RuntimeError(f"{book.side.name}: blocks are held although nothing runs")
    return taken
