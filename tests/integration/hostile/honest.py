"""A client with questions whose answers are known: asks them all again and again, and judges each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mmcached.client import Client
from mmcached.wire.errors import MmcachedError
from tests.integration.workloads import photo

PROMPTS = [
    ("What is this? <image>", (0,)),
    ("Say more.", ()),
    ("<image> and <image>?", (1, 2)),
    ("<image> again", (3,)),
]
MAX_TOKENS = 4
CALL_TIMEOUT_S = 60.0


@dataclass
class Record:
    """What one kind of call met.

    Attributes:
        failures: error codes, in their order.
    """

    num_answered: int = 0
    failures: list[str] = field(default_factory=list)


class HonestClient:
    """Plays rounds of all verbs against one service.

    Args:
        tokens: what each of `PROMPTS` is answered with by a service without caches.
    Raises (from `play`):
        AssertionError: an answer was wrong.
    """

    def __init__(self, run_dir: Path, tokens: list[list[int]], seed: int) -> None:
        self._client = Client(run_dir, timeout_s=CALL_TIMEOUT_S, tenant="honest", fail_open=False)
        self._tokens = tokens
        self._rng = random.Random(seed)
        self.records: dict[str, Record] = {}

    def play(self) -> None:
        """Ask each kind of question once."""
        index = self._rng.randrange(len(PROMPTS))
        text, photos = PROMPTS[index]
        images = [photo(number) for number in photos]
        value = self._rng.randrange(256)
        key = f"{self._rng.random()}"
        small = np.full(4000, value, np.uint8)

        def generate() -> None:
            assert self._client.generate(text, images, MAX_TOKENS).tokens == self._tokens[index], "wrong tokens"

        def put_and_get() -> None:
            self._client.put(key, {"a": small})
            found = self._client.get(key, tensors="numpy")
            # Evicted in between is a miss, and right; anything but these bytes is not.
            assert found is None or np.array_equal(found.record["a"], small), "wrong bytes"

        def compute() -> None:
            found = self._client.get_or_compute(f"computed {value}", lambda: {"v": value}, tensors="numpy")
            assert found["v"] == value, "wrong value"

        self._ask("contains", lambda: self._client.contains_many([key]))
        self._ask("put and get", put_and_get)
        self._ask("get_or_compute", compute)
        self._ask("generate", generate)

    def close(self) -> None:
        self._client.close()

    def _ask(self, name: str, call: Callable[[], object]) -> None:
        record = self.records.setdefault(name, Record())
        try:
            call()
        except MmcachedError as error:
            if not error.retryable:
                raise
            record.failures.append(error.code)
        else:
            record.num_answered += 1
