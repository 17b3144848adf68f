"""Measures the share of prompt tokens that small pools find, where layers with windows have smaller blocks.

conversations   some at a time; each turn brings the whole history and a few new tokens, in any order
agents          a handful of long instructions; each request brings one of them, a task of its own and some turns
documents       questions about documents, a few of which are asked about much more often than the rest

One request runs at a time: its prompt in chunks, then its answer token by token, as in an engine; the answer is part of
the next turn. Content is digests that are drawn, so nothing is hashed. A pool is given as a share of what the working
set takes up if every block of it stays.

Peers: vLLM where it is installed, and our manager with every full block published, whether a hit can use it or not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmcached.engine.kv.manager import KVCacheManager
from scripts.bench.harness import Row, row
from scripts.bench.kv_sides import Kind, Ours, Side

CHUNK_TOKENS = 256
ANSWER_TOKENS = 40
WORKING_SET_TOKENS = 60_000
POOL_SHARES = (0.15, 0.4, 1.0)
NUM_REQUESTS = 1_200
QUICK_REQUESTS = 300
_DIGEST_BYTES = 32

MIXES = {
    "full 16, window 128 over 16": Kind(((16, None), (16, 128))),
    "full 64, window 128 over 16": Kind(((64, None), (16, 128))),
    "full 128, window 64 over 16": Kind(((128, None), (16, 64))),
    "full 256, window 128 over 64": Kind(((256, None), (64, 128))),
}


class Text:
    """A sequence that only grows; equal beginnings have equal digests.

    Args:
        grain: tokens under one digest.
        start: what it continues.
    """

    def __init__(self, rng: random.Random, grain: int, start: Text | None = None) -> None:
        self._rng, self._grain = rng, grain
        self.num_tokens: int = start.num_tokens if start is not None else 0
        self.digests: list[bytes] = list(start.digests) if start is not None else []

    def grow(self, num_tokens: int) -> Text:
        self.num_tokens += num_tokens
        while len(self.digests) < self.num_tokens // self._grain:
            self.digests.append(self._rng.randbytes(_DIGEST_BYTES))
        return self


Traffic = Callable[[random.Random, int], Iterator[Text]]
"""Yields what comes next, the prompt so far; who asked adds the answer and asks for the next one."""


def conversations(rng: random.Random, grain: int) -> Iterator[Text]:
    """Twenty at a time, of 3,000 tokens at most; turns of 100 to 300 tokens."""
    at_a_time, longest = WORKING_SET_TOKENS // 3_000, 3_000
    texts = [Text(rng, grain).grow(rng.randint(1, longest)) for _ in range(at_a_time)]
    while True:
        index = rng.randrange(at_a_time)
        if texts[index].num_tokens > longest:
            texts[index] = Text(rng, grain)
        yield texts[index].grow(rng.randint(100, 300))


def agents(rng: random.Random, grain: int) -> Iterator[Text]:
    """Ten instructions of 1,000 to 5,000 tokens; tasks of 50 to 800, worked on in one to four turns."""
    instructions = [Text(rng, grain).grow(rng.randint(1_000, 5_000)) for _ in range(10)]
    working: list[tuple[Text, int]] = []
    while True:
        if len(working) < 10:
            working.append((Text(rng, grain, rng.choice(instructions)).grow(rng.randint(50, 800)), rng.randint(1, 4)))
        text, num_left = working.pop(rng.randrange(len(working)))
        if num_left > 1:
            working.append((text, num_left - 1))
        yield text.grow(rng.randint(20, 100))


def documents(rng: random.Random, grain: int) -> Iterator[Text]:
    """Thirty documents of 1,000 to 3,000 tokens, the n-th asked about 1 / n times as often as the first."""
    texts = [Text(rng, grain).grow(rng.randint(1_000, 3_000)) for _ in range(30)]
    weights = [1 / rank for rank in range(1, len(texts) + 1)]
    while True:
        (document,) = rng.choices(texts, weights)
        yield Text(rng, grain, document).grow(rng.randint(20, 200))


TRAFFIC: dict[str, Traffic] = {"conversations": conversations, "agents": agents, "documents": documents}
HIT_RATE = "prompt tokens found"
ALL_PUBLISHED = "all published"
HIT_PEERS = (ALL_PUBLISHED, "vLLM")


class EverythingPublished(Ours):
    """Ours without the rule that a block is published only if a hit can use it."""

    name = ALL_PUBLISHED

    def manager(self, num_blocks: int, kind: Kind) -> KVCacheManager:
        manager = super().manager(num_blocks, kind)
        publisher: Any = manager._publisher
        publisher._groups = tuple(replace(group, stride=1) for group in publisher._groups)
        for group in publisher._groups:
            group.kind.runs_for_hits = lambda start, stop: ((start, stop),)
        return manager


@dataclass(frozen=True, slots=True)
class Play:
    """One traffic on one manager."""

    traffic: str
    mix: str
    share: float

    @property
    def num_blocks(self) -> int:
        """Of the pool, the null block not included."""
        return int(self.share * sum(WORKING_SET_TOKENS / size for size in MIXES[self.mix].block_sizes))

    @property
    def params(self) -> str:
        return f"{self.traffic}; {self.mix}; {self.num_blocks:,} blocks"

    def percent_found(self, side: Side, num_requests: int) -> float:
        """Return how much of all prompt tokens was found, after as many requests that do not count."""
        kind = MIXES[self.mix]
        manager = side.manager(self.num_blocks + 1, kind)
        texts = TRAFFIC[self.traffic](random.Random(self.traffic), math.gcd(*kind.block_sizes))
        num_found = num_asked = 0
        for number, text in zip(range(2 * num_requests), texts, strict=False):
            num_prompt = text.num_tokens
            text.grow(ANSWER_TOKENS)
            found = _run(manager, side.request([0] * text.num_tokens, text.digests), num_prompt)
            if number >= num_requests:
                num_found, num_asked = num_found + found, num_asked + num_prompt
        return 100 * num_found / num_asked


PLAYS = [Play(traffic, mix, share) for traffic in TRAFFIC for mix in MIXES for share in POOL_SHARES]
HIT_PARAMS = [play.params for play in PLAYS]


def _run(manager: Any, request: Any, num_prompt: int) -> int:
    """Compute a request alone, and free it; return how many tokens of its prompt were found.

    Raises:
        RuntimeError: the pool is too small even for one.
    """
    hit = manager.get_computed_blocks(request)
    blocks, num_found = hit[0], min(int(hit[1]), num_prompt - 1)
    while request.num_computed_tokens < request.num_tokens:
        num_done = request.num_computed_tokens + (hit[1] if blocks is not None else 0)
        num_new = min(CHUNK_TOKENS, num_prompt - num_done) if num_done < num_prompt else 1
        if blocks is None:
            given = manager.allocate_slots(request, num_new)
        else:
            given, blocks = manager.allocate_slots(request, num_new, hit[1], blocks), None
        if given is None:
            raise RuntimeError(f"{num_done + num_new} tokens do not fit")
        request.num_computed_tokens = num_done + num_new
    manager.free(request)
    return num_found


def hit_rows(vllm: Side | None, num_rounds: int, *, few_rounds: int) -> list[Row]:
    """Return a row for each traffic, mix and pool against each peer; few rounds stand for a short run."""
    peers: Sequence[Side] = [EverythingPublished(), *([vllm] if vllm is not None else [])]
    num_requests = QUICK_REQUESTS if num_rounds <= few_rounds else NUM_REQUESTS
    rows = []
    for play in PLAYS:
        ours = play.percent_found(Ours(), num_requests)
        for peer in peers:
            theirs = play.percent_found(peer, num_requests)
            rows.append(row(HIT_RATE, play.params, ours, "%", peer=peer.name, peer_value=theirs))
    return rows
