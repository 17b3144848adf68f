"""What only an asyncio client can do with the store: many verbs at once, coroutines that compute, cancelled calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import AsyncClient
from mmcached.wire.messages.client import ToClient
from mmcached.wire.messages.frontend import Cancel, ClaimRecord, DropClaim, GetRecords, TakeRow
from mmcached.wire.sockets.channels import Frame
from tests.client.records import is_equal, numbers
from tests.client.store_service import StoreService
from tests.integration.processes import eventually


@pytest.fixture
def service(run_dir: Path) -> Iterator[StoreService]:
    with StoreService(run_dir) as running:
        yield running


def run(what: Any) -> None:
    asyncio.run(asyncio.wait_for(what, 60))


async def until(question: Callable[[], bool]) -> None:
    while not question():  # noqa: ASYNC110 (a thread fills it; `run` has the deadline)
        await asyncio.sleep(0.001)


def test_many_verbs_at_once_each_get_their_own_answer(service: StoreService, run_dir: Path) -> None:
    async def ask() -> None:
        async with AsyncClient(run_dir) as client:
            await asyncio.gather(*(client.put(f"k{seed}", numbers(seed)) for seed in range(30)))
            hits = await asyncio.gather(*(client.get(f"k{seed}", view=True, tensors="numpy") for seed in range(30)))
            assert all(hit is not None and is_equal(hit.record, numbers(seed)) for seed, hit in enumerate(hits))

    run(ask())
    assert service.count(TakeRow) == 1
    eventually(lambda: service.leases, lambda count: count == 0, "leases")


def test_equal_keys_of_one_client_are_computed_once_by_a_coroutine(service: StoreService, run_dir: Path) -> None:
    calls: list[int] = []

    async def compute() -> dict[str, Any]:
        calls.append(1)
        await until(lambda: service.count(ClaimRecord) == 5)
        return numbers(1)

    async def ask() -> None:
        async with AsyncClient(run_dir) as client:
            found = await asyncio.gather(*(client.get_or_compute("k", compute, tensors="numpy") for _ in range(5)))
            assert is_equal(found, [numbers(1)] * 5)

    run(ask())
    assert len(calls) == 1


def test_cancelled_while_it_computes_gives_the_claim_back(service: StoreService, run_dir: Path) -> None:
    async def ask() -> None:
        begun = asyncio.Event()

        async def never() -> dict[str, Any]:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with AsyncClient(run_dir) as client:
            task = asyncio.create_task(client.get_or_compute("k", never))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert is_equal(await client.get_or_compute("k", lambda: numbers(2)), numbers(2))

    run(ask())
    assert service.count(DropClaim) == 1


def test_cancelled_while_it_waits_is_told_to_the_service(service: StoreService, run_dir: Path) -> None:
    async def ask() -> None:
        service.hold = (ClaimRecord,)
        async with AsyncClient(run_dir) as client:
            task = asyncio.create_task(client.get_or_compute("k", lambda: numbers(1)))
            await until(lambda: service.count(ClaimRecord) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: service.count(Cancel) == 1)
            service.release()
            await until(lambda: service.count(DropClaim) == 1)  # it was told to compute all the same

    run(ask())


def test_answer_to_a_cancelled_get_gives_its_lease_back(service: StoreService, run_dir: Path) -> None:
    async def ask() -> None:
        async with AsyncClient(run_dir) as client:
            await client.put("k", numbers(1))
            service.hold = (GetRecords,)
            task = asyncio.create_task(client.get("k", view=True))
            await until(lambda: service.count(GetRecords) == 1)
            service.call(lambda: None)  # by now it is held
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            service.release()
            assert service.desk.tier.num_hits == 1, "it was served"
            await until(lambda: service.leases == 0)

    run(ask())


async def _wait_for(future: asyncio.Future[Any], timeout_s: float) -> Any:
    """As asyncio's of Python 3.12 and later: a cancel wins over a result that is there. Before, the result won."""
    async with asyncio.timeout(timeout_s):
        return await future


def test_answer_that_comes_with_the_cancel_gives_its_lease_back(
    service: StoreService, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both happen in one turn of the event loop: the answer is there, but nobody gets it."""

    async def ask() -> None:
        async with AsyncClient(run_dir) as client:
            await client.put("k", numbers(1))
            monkeypatch.setattr(asyncio, "wait_for", _wait_for)
            link = client._link
            assert link is not None
            take_in = link._take_in

            def take_in_and_cancel(message: ToClient, payload: list[Frame]) -> None:
                take_in(message, payload)
                task.cancel()

            monkeypatch.setattr(link, "_take_in", take_in_and_cancel)
            task = asyncio.create_task(client.get("k", view=True))
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: service.leases == 0)

    run(ask())
