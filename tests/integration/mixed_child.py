"""A client process of everything at once, without torch; run as a module: `mixed_child RUN_DIR QUESTIONS SEED [ROUGH]`.

Until its input ends: generations and encodings of known images (by content, by id with the file, by id alone), and the
store's verbs; several at a time, some of them with a short deadline or cancelled. Whatever is answered is judged; a
wrong answer, or an error that nobody asked for, ends it with status 1. ROUGH: roles are killed meanwhile, so an error
that may be tried again is no fault.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import select
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mmcached.client import AsyncClient, Generation
from mmcached.wire.errors import CacheMiss, DeadlineExceeded, MmcachedError
from mmcached.wire.process.death import arm_from_environment
from tests.integration.sidecar_child import record_of, say

NUM_KEYS = 40
MAX_AT_ONCE = 3
CONNECT_S = 60.0
PAUSE_S = 0.05
"""Of one whose service is away: only politeness."""
HASTE = 0.2
"""Part of the calls that are ended early."""


class Question(msgspec.Struct, frozen=True):
    """One request and its only right answer: tokens, or with `prompt` None one digest per embedding.

    Attributes:
        images: paths of the files, which are also their ids.
    """

    prompt: str | None
    images: list[str]
    max_tokens: int
    tokens: list[int] = []
    digests: list[str] = []


class WrongAnswerError(Exception):
    pass


class Traffic:
    """One client's calls, and what became of them."""

    def __init__(
        self, client: AsyncClient, questions: list[Question], rng: random.Random, *, is_rough: bool = False
    ) -> None:
        self._client = client
        self._is_rough = is_rough
        self._questions = questions
        self._rng = rng
        self.counts: Counter[str] = Counter()

    async def some_at_once(self) -> None:
        """Make a few calls at once; raise what none of them may end with."""
        calls = [
            self._hasty if self._rng.random() < HASTE else self._calm for _ in range(self._rng.randint(1, MAX_AT_ONCE))
        ]
        # All end before the first error is raised: none may go on unseen.
        for outcome in await asyncio.gather(*(call() for call in calls), return_exceptions=True):
            if self._is_rough and isinstance(outcome, MmcachedError) and outcome.retryable:
                self.counts["retryable"] += 1
                await asyncio.sleep(PAUSE_S)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _calm(self) -> None:
        await self._some_call()(None)

    async def _hasty(self) -> None:
        """End a call early, by its own deadline or by cancelling it; either may come too late."""
        after_s = self._rng.random() ** 2 * 0.05  # the moment is what is random here; nothing waits for it
        if self._rng.random() < 0.5:
            try:
                await self._some_call()(max(after_s, 0.001))
            except DeadlineExceeded:
                self.counts["late"] += 1
            return
        task = asyncio.ensure_future(self._some_call()(None))
        await asyncio.wait([task], timeout=after_s)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            self.counts["cancelled"] += 1
        elif isinstance(outcome, BaseException):
            raise outcome

    def _some_call(self) -> Callable[[float | None], Awaitable[None]]:
        return self._ask if self._rng.random() < 0.6 else self._use_store

    # ---- the model

    async def _ask(self, timeout_s: float | None) -> None:
        question = self._rng.choice(self._questions)
        ids = [path if self._rng.random() < 0.5 else None for path in question.images]
        images = [
            None if name and self._rng.random() < 0.7 else Path(name or path)
            for name, path in zip(ids, question.images, strict=True)
        ]
        try:
            await self._compare(question, images, ids, timeout_s)
            self.counts["by id alone"] += None in images
        except CacheMiss as miss:
            absent = [name for name, image in zip(ids, images, strict=True) if image is None]
            if not miss.mm_hashes or not set(miss.mm_hashes) <= set(absent):
                raise WrongAnswerError(f"{miss.mm_hashes} missed, {absent} came by id alone") from None
            self.counts["misses"] += 1
            await self._compare(question, list(map(Path, question.images)), ids, timeout_s)
        self.counts["answers"] += 1

    async def _compare(
        self, question: Question, images: Sequence[Path | None], ids: list[str | None], timeout_s: float | None
    ) -> None:
        client = self._client
        if question.prompt is not None:
            ask = client.generate if self._rng.random() < 0.5 else self._stream
            answer = await ask(question.prompt, images, question.max_tokens, image_ids=ids, timeout_s=timeout_s)
            if answer.tokens != question.tokens:
                raise WrongAnswerError(f"{question}: {answer.tokens}")
            return
        found: Any = await client.encode(images, image_ids=ids, tensors="numpy", timeout_s=timeout_s)
        digests = [digest_of(frame) for frame in found]
        if digests != question.digests:
            raise WrongAnswerError(f"{question}: {digests}")

    async def _stream(self, *values: Any, **named: Any) -> Generation:
        """As `generate`, by a stream; its tokens must be those of the generation."""
        heard: list[int] = []
        async for piece in self._client.generate_stream(*values, **named):
            if isinstance(piece, Generation):
                if heard != piece.tokens:
                    raise WrongAnswerError(f"{values}: {heard} came one by one, then {piece.tokens}")
                self.counts["streams"] += 1
                return piece
            if isinstance(piece, list):
                heard += piece
        raise WrongAnswerError(f"{values}: a stream without an end")

    # ---- the store

    async def _use_store(self, timeout_s: float | None) -> None:
        number = self._rng.randrange(NUM_KEYS)
        key = f"k{number}"
        match self._rng.choice(["get", "view", "compute", "put"]):
            case "get" | "view" as verb:
                hit = await self._client.get(key, view=verb == "view", tensors="numpy", timeout_s=timeout_s)
                if hit is not None:
                    judge(number, hit.record)
                    self.counts["store hits"] += 1
            case "compute":
                record = await self._client.get_or_compute(
                    key, lambda: record_of(number), tensors="numpy", timeout_s=timeout_s
                )
                judge(number, record)
            case "put":
                await self._client.put(key, record_of(number), timeout_s=timeout_s)


def digest_of(data: Any) -> str:
    return hashlib.blake2b(bytes(data), digest_size=16).hexdigest()


def judge(number: int, record: dict[str, Any]) -> None:
    wanted = record_of(number)
    if record["number"] != number or not np.array_equal(record["x"], wanted["x"]):
        raise WrongAnswerError(f"key {number} has the record of {record['number']}")


async def run(run_dir: Path, questions: list[Question], seed: int, *, is_rough: bool) -> None:
    async with AsyncClient(run_dir, connect_timeout_s=CONNECT_S) as client:
        traffic = Traffic(client, questions, random.Random(seed), is_rough=is_rough)
        say(ready=seed)
        while not select.select([sys.stdin], [], [], 0)[0]:
            await traffic.some_at_once()
        say(**traffic.counts, failures=client.store_counters().failures)


def main(run_dir: str, questions: str, seed: str, *rough: str) -> int:
    known = msgspec.json.decode(Path(questions).read_bytes(), type=list[Question])
    try:
        asyncio.run(run(Path(run_dir), known, int(seed), is_rough=bool(rough)))
    except Exception as error:
        say(wrong=repr(error))
        return 1
    return 0


if __name__ == "__main__":
    arm_from_environment()
    sys.exit(main(*sys.argv[1:]))
