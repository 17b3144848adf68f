"""What one engine has encoded, the others load out of the store: every answer is the same, bit for bit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, Client, results
from mmcached.shm.store.codec import Library
from mmcached.wire.engine_stats import WorkerStats
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.client import Encoded
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ServiceStats
from tests.integration.local_service import LocalService, without_caches
from tests.integration.processes import DEADLINE_S, eventually, retryably, role_pids, small_config, stats_of
from tests.integration.test_bit_identical import base, quiet_stats, uncached
from tests.integration.workloads import Answer, assert_same, photo, play, random_rounds
from tests.present import present

NUM_IMAGES = 8


def total(stats: ServiceStats, figure: Callable[[WorkerStats], int]) -> int:
    """Return a figure of all workers of all engines together."""
    return sum(figure(worker) for engine in stats.engines for worker in engine.workers)


def encoded(stats: ServiceStats) -> int:
    return total(stats, lambda worker: worker.items_encoded)


def loaded(stats: ServiceStats) -> int:
    return total(stats, lambda worker: worker.items_loaded)


def saved(stats: ServiceStats) -> int:
    return total(stats, lambda worker: worker.outputs_saved)


def settled(run_dir: Path) -> ServiceStats:
    """Return the figures when all that was encoded is saved."""
    return eventually(lambda: stats_of(run_dir), lambda stats: saved(stats) == encoded(stats) > 0, "all is saved")


ONE_OR_TWO = [pytest.param(1, marks=pytest.mark.soak), 2]
ALL_NAMED = LimitsConfig(max_inline_output_kb=0, output_wait_s=DEADLINE_S)
"""No output travels inline unless it has to."""
QUESTION = "what is " + "<image>" * NUM_IMAGES
IMAGES = [photo(index) for index in range(NUM_IMAGES)]
OTHERS = [photo(index) for index in range(NUM_IMAGES, NUM_IMAGES + 12)]


async def ask_at_once(run_dir: Path, num_times: int) -> list[Answer]:
    """Ask for all images, so many times at once; a generation, since a client finds embeddings by itself."""
    async with AsyncClient(run_dir) as client:
        asks = (client.generate(QUESTION, IMAGES, 4, hidden_states=True) for _ in range(num_times))
        return list(await asyncio.gather(*asks))


@pytest.fixture(scope="module")
def uncached_answers() -> list[Answer]:
    """The answer and the embeddings of a service that has no caches."""
    with without_caches() as client:
        return [client.generate(QUESTION, IMAGES, 4, hidden_states=True), client.encode(IMAGES)]


@pytest.fixture(scope="module")
def wanted(uncached_answers: list[Answer]) -> Answer:
    return uncached_answers[0]


@pytest.mark.parametrize("mode", ["shm", pytest.param("lru", marks=pytest.mark.soak)])
def test_two_engines_that_are_asked_at_once_encode_each_image_once(mode: str, run_dir: Path, wanted: Answer) -> None:
    config = small_config(
        world_size=1, data_parallel_size=2, routing_policy="round_robin", mm_processor_cache_type=mode
    )
    with LocalService(run_dir, config, saves_outputs=True):
        eventually(lambda: stats_of(run_dir), lambda stats: len(stats.engines) == 2, "two engines")
        before = settled(run_dir)
        assert_same(asyncio.run(ask_at_once(run_dir, 4)), [wanted] * 4)
        assert_same(asyncio.run(ask_at_once(run_dir, 4)), [wanted] * 4)
        stats = quiet_stats(run_dir)
    assert encoded(stats) - encoded(before) == NUM_IMAGES
    assert loaded(stats) == NUM_IMAGES, "by the other engine, at the latest when it is asked again"
    assert stats.resends == 0


@pytest.mark.parametrize("world_size", ONE_OR_TWO)
def test_outputs_of_the_store_change_nothing(world_size: int, run_dir: Path) -> None:
    rounds = random_rounds(5)
    config = base(world_size=world_size, data_parallel_size=2, routing_policy="round_robin", limits=ALL_NAMED)
    with LocalService(run_dir, config, saves_outputs=True) as service:
        eventually(lambda: stats_of(run_dir), lambda stats: len(stats.engines) == 2, "two engines")
        for _ in range(2):
            assert_same(asyncio.run(play(run_dir, rounds)), list(uncached(5)))
        stats = quiet_stats(run_dir)
    assert not service.errors
    assert stats.resends == 0
    assert loaded(stats) > 0


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_the_ranks_of_an_engine_encode_each_image_once_together(world_size: int, run_dir: Path, wanted: Answer) -> None:
    with LocalService(run_dir, small_config(world_size=world_size), saves_outputs=True) as service:
        before = stats_of(run_dir)
        assert_same(asyncio.run(ask_at_once(run_dir, 1)), [wanted])
        stats = quiet_stats(run_dir)
    assert not service.errors
    assert encoded(stats) - encoded(before) == NUM_IMAGES
    assert loaded(stats) - loaded(before) == (world_size - 1) * NUM_IMAGES
    workers = stats.engines[0].workers
    assert all(worker.items_encoded for worker in workers), "each has its share"
    assert len({(worker.items_encoded + worker.items_loaded, worker.tokens_computed) for worker in workers}) == 1


@pytest.fixture(scope="module")
def embeddings() -> list[torch.Tensor]:
    """What a service that has no caches says of the photographs behind those."""
    with without_caches() as client:
        return client.encode(OTHERS)


@pytest.mark.parametrize("world_size", ONE_OR_TWO)
def test_embeddings_travel_through_the_store(
    world_size: int, run_dir: Path, embeddings: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Encoded] = []

    def embeddings_from(message: Encoded, payload: Sequence[Frame], tensors: Library) -> list[Any]:
        said.append(message)
        return results.embeddings_from(message, payload, tensors)

    monkeypatch.setattr("mmcached.client.model_verbs.embeddings_from", embeddings_from)
    config = small_config(world_size=world_size, limits=ALL_NAMED)
    with LocalService(run_dir, config, saves_outputs=True) as service, Client(run_dir) as client:
        found = client.encode(OTHERS[:4], view=True) + client.encode(OTHERS[4:])
        assert_same([found], [embeddings])
        del found
        client.invalidate()  # no flush: after that an output that was saved late would be found without an answer
        assert_same([client.encode(OTHERS)], [embeddings])
    assert not service.errors
    outputs = [output for message in said for output in message.outputs]
    assert len(outputs) == 2 * len(OTHERS)
    assert {type(output) for output in outputs} == {str}


@contextmanager
def full_store(run_dir: Path) -> Iterator[None]:
    """Hold so much of the store under lease that it takes no further record."""
    with Client(run_dir) as client, ExitStack() as held:
        for size in (1 << 18, 1 << 12, 1):
            number = 0
            while client.put(f"{number} of {size}", {"x": np.zeros(size, np.uint8)}):
                hit = present(client.get(f"{number} of {size}", view=True, tensors="numpy"))
                held.enter_context(hit)
                number += 1
        yield


@pytest.mark.parametrize("world_size", ONE_OR_TWO)
def test_a_full_store_costs_encodes_and_nothing_else(
    world_size: int, run_dir: Path, uncached_answers: list[Answer]
) -> None:
    config = small_config(
        world_size=world_size,
        data_parallel_size=2,
        routing_policy="round_robin",
        store_gb=1 / 512,
        store_client_quota_gb=1 / 512,
    )
    with LocalService(run_dir, config, saves_outputs=True) as service, Client(run_dir) as client:
        with full_store(run_dir):
            before = stats_of(run_dir)
            for _ in range(2):
                assert_same(asyncio.run(ask_at_once(run_dir, 2)), uncached_answers[:1] * 2)
                assert_same([client.encode(IMAGES)], uncached_answers[1:])
            wanted_items = encoded(before) + loaded(before) + 2 * NUM_IMAGES * world_size
            stats = eventually(
                lambda: stats_of(run_dir),
                lambda now: encoded(now) + loaded(now) == wanted_items,
                "each rank of each engine has all images",
            )
            assert encoded(stats) - encoded(before) >= 2 * NUM_IMAGES, "no engine has anything of the other"
            assert stats.store.puts == before.store.puts
            assert stats.store.refusals > before.store.refusals
            assert stats.resends == 0
        client.encode([photo(NUM_IMAGES)])
        eventually(lambda: stats_of(run_dir).store.puts, lambda puts: puts > before.store.puts, "a put")
    assert not service.errors


def test_what_was_encoded_before_a_kill_is_loaded_by_the_successors(
    run_dir: Path, wanted: Answer, embeddings: list[torch.Tensor]
) -> None:
    """Each role but the supervisor is killed in turn; the frontend leaves its store to the next one."""
    directory = run_dir / "s"

    def answers() -> list[Answer]:
        return asyncio.run(ask_at_once(directory, 1))

    with ChildService(directory, small_config(world_size=1, limits=ALL_NAMED), run_dir / "config.json") as service:
        assert_same(asyncio.run(ask_at_once(directory, 1)), [wanted])
        before = settled(directory)
        for turn, role in enumerate(("worker", "frontend", "engine")):
            files, said = OTHERS[turn::3], embeddings[turn::3]
            ask = partial(retryably, partial(_embeddings, directory, files))
            with ThreadPoolExecutor(1) as asker:  # what its role's death leaves unanswered can be asked for again
                asked = asker.submit(ask)
                _kill(service.process.pid, role)
            for found in (asked.result() or said, eventually(ask, lambda found: found is not None, "embeddings")):
                assert_same([found or []], [said])
            answer = eventually(partial(retryably, answers), lambda found: found is not None, "an answer")
            assert_same(answer or [], [wanted])
        stats = eventually(lambda: stats_of(directory), lambda found: bool(found.engines), "its figures")
    assert loaded(stats) - loaded(before) >= 2 * NUM_IMAGES, "worker and engine begin with empty caches"
    assert encoded(stats) - encoded(before) <= 2 + 2 * len(OTHERS), (
        "the others; and the images with which the supervisor asks whether all is well"
    )


def _kill(supervisor: int, role: str) -> None:
    """Kill a role, and return when it has a successor."""
    (pid,) = role_pids(supervisor)[role]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: role_pids(supervisor)[role], lambda pids: pids not in ([], [pid]), f"another {role}")


def _embeddings(run_dir: Path, files: list[bytes]) -> list[torch.Tensor]:
    with Client(run_dir) as client:
        return client.encode(files)
