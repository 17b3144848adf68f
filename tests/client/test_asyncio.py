"""What only an asyncio client can do: many calls at once, coroutines that compute, cancelled calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import AsyncClient, Generation
from mmcached.wire.errors import ClientClosed, LocalProtocolError, PeerGone
from mmcached.wire.messages.frontend import (
    Cancel,
    ClaimRecord,
    ClientBye,
    DropClaim,
    FromClient,
    Generate,
    RegisterReader,
)
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService, fake_service, hesitate, send_half_of_the_next_message, silent
from tests.integration.processes import eventually


def run(what: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(what, 60))


async def until(question: Callable[[], bool]) -> None:
    while not question():  # noqa: ASYNC110 (a thread fills it; `run` has the deadline)
        await asyncio.sleep(0.001)


def num_asked(received: list[FromClient]) -> int:
    return sum(isinstance(message, Generate) for message in received)


def test_many_calls_at_once_each_get_their_own_answer(service: StoreService, run_dir: Path) -> None:
    async def stream(client: AsyncClient, seed: int) -> list[Any]:
        *pieces, generation = [piece async for piece in client.generate_stream([seed, 2, 3])]
        assert isinstance(generation, Generation)
        return [token for piece in pieces for token in piece]  # type: ignore[union-attr]

    async def ask() -> None:
        async with AsyncClient(run_dir) as client:
            seeds = range(30)
            await asyncio.gather(*(client.put(f"k{seed}", numbers(seed)) for seed in seeds))
            hits = await asyncio.gather(*(client.get(f"k{seed}", view=True, tensors="numpy") for seed in seeds))
            assert all(hit is not None and is_equal(hit.record, numbers(seed)) for seed, hit in enumerate(hits))
            answers = await asyncio.gather(*(client.generate([seed]) for seed in seeds))
            assert [answer.tokens for answer in answers] == [[seed] for seed in seeds]
            assert await asyncio.gather(*(stream(client, seed) for seed in seeds)) == [[seed, 2, 3] for seed in seeds]

    run(ask())
    assert service.count(RegisterReader) == 1
    eventually(lambda: service.leases, lambda count: count == 0, "leases")


def test_half_a_message_ends_the_other_calls_and_the_client_goes_on(
    service: StoreService, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        async with AsyncClient(run_dir, fail_open=False) as client:
            other = asyncio.create_task(client.generate([1]))
            await until(lambda: service.num_held == 1)
            send_half_of_the_next_message(monkeypatch, MemoryError)
            with pytest.raises(MemoryError):
                await client.put("k", numbers(1))
            with pytest.raises(PeerGone):
                await other
            assert (await client.put("k", numbers(1))).outcome == "kept"

    service.hold = (Generate,)
    run(ask())
    assert len(service.peers) == 1, "it has another client id"


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


def test_a_client_is_for_one_loop_and_for_the_time_that_it_is_open(run_dir: Path) -> None:
    async def ask(client: AsyncClient) -> None:
        await client.contains_many(["k"])

    async def keep(client: AsyncClient) -> None:
        with pytest.raises(ClientClosed, match="async with"):
            await ask(client)
        await client.__aenter__()
        with pytest.raises(LocalProtocolError, match="one event loop"):
            await asyncio.to_thread(asyncio.run, ask(client))
        waiting = asyncio.create_task(client.generate("y"))
        await until(lambda: num_asked(received) == 1)
        await client.close()
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await ask(client)

    with fake_service(run_dir, silent) as received:
        run(keep(AsyncClient(run_dir)))


# ---- cancelled


async def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_cancelled_generation_is_cancelled_in_the_service(run_dir: Path) -> None:
    async def ask() -> None:
        async with AsyncClient(run_dir) as client:
            task = asyncio.create_task(client.generate("x"))
            await until(lambda: num_asked(received) == 1)
            await cancel(task)

    with fake_service(run_dir, silent) as received:
        run(ask())
        eventually(lambda: [type(m) for m in received][-2:], lambda last: last == [Cancel, ClientBye], "last words")


@pytest.mark.parametrize("how", ["break", "cancel"])
def test_a_stream_that_is_left_is_ended_in_the_service(run_dir: Path, how: str) -> None:
    async def ask() -> None:
        has_some = asyncio.Event()

        async def read(client: AsyncClient) -> None:
            async for _ in client.generate_stream("x"):
                has_some.set()
                if how == "break":
                    break

        async with AsyncClient(run_dir) as client:
            task = asyncio.create_task(read(client))
            await has_some.wait()
            if how == "cancel":
                await cancel(task)
            # asyncio ends what is dropped, a few turns later
            await until(lambda: any(isinstance(message, Cancel) for message in received))

    with fake_service(run_dir, hesitate) as received:
        run(ask())


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
            await cancel(task)
            assert is_equal(await client.get_or_compute("k", lambda: numbers(2)), numbers(2))

    run(ask())
    assert service.count(DropClaim) == 1


def test_cancelled_while_it_waits_is_told_to_the_service(service: StoreService, run_dir: Path) -> None:
    async def ask() -> None:
        service.hold = (ClaimRecord,)
        async with AsyncClient(run_dir) as client:
            task = asyncio.create_task(client.get_or_compute("k", lambda: numbers(1)))
            await until(lambda: service.count(ClaimRecord) == 1)
            await cancel(task)
            await until(lambda: service.count(Cancel) == 1)
            service.release()
            await until(lambda: service.count(DropClaim) == 1)  # it was told to compute all the same

    run(ask())
