"""Draws growing token sequences for the benchmark of the KV cache, with a digest for every full block.

    conversations    some at a time; each turn brings the whole history and a few new tokens, in any order
    agents           a handful of long instructions; each request brings one of them, a task of its own and some turns
    documents        questions about documents, a few of which are asked about much more often than the rest

The caller adds an answer to a text and asks for the next one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

WORKING_SET_TOKENS = 60_000
_DIGEST_BYTES = 32


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
"""Yields what comes next: the prompt so far."""


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
