"""Two hundred random requests with pictures: the tokens of `generate` alone, and bits that do not depend on caches.

Eight ask at once, prompts are prefixes of each other, the KV pool is too small for all, and the worker is killed once.
Rows and logprobs have the same bits as without caches; a logprob depends on all logits. In the mode `packed` tokens are
the same.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
import torch

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client, Generation, RowsWanted, Sampling
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError
from mmcached.wire.messages.parts import MAX_LOGPROBS
from tests.hosts.transformers import checkpoints
from tests.hosts.transformers.checkpoints import photograph
from tests.hosts.transformers.models import IMAGE
from tests.hosts.transformers.pictures_alone import PicturesAlone
from tests.hosts.transformers.test_language_service import RESTART_S, config_of
from tests.integration.processes import role_pids

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_REQUESTS = 200
NUM_ASKERS = 8
KILLED_AFTER = 80
MAX_PICTURES = 4
PICTURES = [photograph(60 + 9 * seed, 110 - 7 * seed, "PNG", seed) for seed in range(8)]
SMALL_POOL: Mapping[str, Any] = {"num_kv_blocks": 24, "max_model_len": 256, "kv_watermark": 0.0}
ROWS = ["hidden_states", "hidden_states.layer_0", "layers.1.mlp"]
SAMPLING = Sampling(temperature=0.0, num_logprobs=MAX_LOGPROBS)
MODEL: Mapping[str, Any] = {"num_layer_outputs": 1, "row_modules": ROWS[2]}
NO_CACHES: Mapping[str, Any] = {
    "enable_prefix_caching": False,
    "enable_tensor_prefix_cache": False,
    "encoder_cache_scope": "request",
    "mm_processor_cache_gb": 0.0,
}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request; a part of its prompt is a text, or a picture's number."""

    parts: Sequence[list[int] | int]
    max_tokens: int

    @property
    def prompt(self) -> list[int]:
        return [token for part in self.parts for token in ([IMAGE] if isinstance(part, int) else part)]

    @property
    def files(self) -> list[bytes]:
        return [PICTURES[part] for part in self.parts if isinstance(part, int)]


def asks_of(random: Random) -> list[Ask]:
    """Return requests of which most begin as an earlier one."""
    asks: list[Ask] = []
    for _ in range(NUM_REQUESTS):
        parts: list[list[int] | int] = []
        if asks and random.random() < 0.7:
            former = random.choice(asks).parts
            parts += former[: random.randint(1, len(former))]
        wanted = random.randint(0, MAX_PICTURES)
        while sum(isinstance(part, int) for part in parts) < wanted:
            parts += [_text(random), random.randrange(len(PICTURES))]
        asks.append(Ask([*parts, _text(random)], random.choice((2, 6, 16))))
    return asks


def _text(random: Random) -> list[int]:
    return [random.randrange(3, IMAGE) for _ in range(random.choice((1, 4, 9, 30)))]


def ask(directory: Path, request: Ask) -> Generation:
    """Return the answer; ask again after errors that allow it."""
    give_up = time.monotonic() + RESTART_S
    while True:
        try:
            with Client(directory, timeout_s=RESTART_S) as client:
                return client.generate(
                    request.prompt, request.files, request.max_tokens, sampling=SAMPLING, hidden_states=RowsWanted(ROWS)
                )
        except MmcachedError as error:
            if not error.retryable or time.monotonic() > give_up:
                raise


def ask_all(directory: Path, asks: Sequence[Ask], meanwhile: Callable[[], None]) -> list[Generation]:
    """Ask for all; call `meanwhile` once, after `KILLED_AFTER` answers in order."""
    with ThreadPoolExecutor(NUM_ASKERS) as askers:
        asked = [askers.submit(ask, directory, request) for request in asks]
        asked[KILLED_AFTER].result()
        meanwhile()
        return [each.result() for each in asked]


@pytest.mark.timeout(3600)
def test_two_hundred_requests_beside_each_other_are_those_of_generate_alone(run_dir: Path, tmp_path: Path) -> None:
    folder = checkpoints.save("llava", tmp_path / "checkpoint")
    asks = asks_of(Random(34))
    encoder = {"kind": "hf", "path": str(folder)}
    directory = run_dir / "s"
    with ChildService(directory, config_of(folder, encoder=encoder, **MODEL, **NO_CACHES), tmp_path / "config.json"):
        plain = ask_all(directory, asks, lambda: None)
    config = config_of(folder, encoder=encoder, **MODEL, **SMALL_POOL)
    with ChildService(directory, config, tmp_path / "config.json") as service:
        (worker,) = role_pids(service.process.pid)["worker"]
        cached = ask_all(directory, asks, lambda: os.kill(worker, signal.SIGKILL))
        assert role_pids(service.process.pid)["worker"] != [worker]
        with Client(directory) as client:
            (engine,) = client.stats().engines
    packed: ServiceConfig = msgspec.structs.replace(config, model=msgspec.structs.replace(config.model, mode="packed"))
    with ChildService(directory, packed, tmp_path / "config.json") as service:
        (worker,) = role_pids(service.process.pid)["worker"]
        batched = ask_all(directory, asks, lambda: os.kill(worker, signal.SIGKILL))
    alone = PicturesAlone(folder)
    wanted = [alone.generate(request.prompt, request.files, request.max_tokens) for request in asks]
    assert [answer.tokens for answer in plain] == wanted
    assert [answer.tokens for answer in cached] == wanted
    assert [answer.tokens for answer in batched] == wanted
    for one, other in zip(cached, plain, strict=True):
        assert list(one.rows) == list(other.rows) == ROWS
        assert all(torch.equal(one.rows[key].tensor, other.rows[key].tensor) for key in ROWS)
        assert one.logprobs == other.logprobs
        assert len(one.logprobs) == len(one.tokens)
    assert engine.preemptions
    assert sum(answer.num_cached_tokens > 0 for answer in cached) > NUM_REQUESTS // 10
    assert not any(answer.num_cached_tokens for answer in plain)
