"""Client and AsyncClient: deadlines, typed errors, late and foreign answers, and the last words to the service."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import AsyncClient, Client
from mmcached.client.links.sync_link import SyncLink
from mmcached.shm.files.lock_file import is_held
from mmcached.wire.errors import (
    CorruptImage,
    DeadlineExceeded,
    InvalidRequest,
    MmcachedError,
    RemoteProtocolError,
    RequestAborted,
    ServiceUnavailable,
    error_to_wire,
)
from mmcached.wire.messages.client import Encoded, Failed, Generated, ToClient
from mmcached.wire.messages.frontend import Cancel, ClientBye, Encode, FromClient, Generate
from mmcached.wire.messages.parts import Tensor
from mmcached.wire.paths import RunDir
from tests.client.fake_service import fake_service
from tests.integration.processes import eventually


def silent(message: FromClient) -> list[ToClient]:
    return []


def echo(message: FromClient) -> list[ToClient]:
    """Answer each generation with its own prompt tokens, after a late answer to somebody else."""
    if not isinstance(message, Generate):
        return []
    tokens = list(message.prompt.encode()) if isinstance(message.prompt, str) else message.prompt
    late = Generated(message.request_id + 1000, [1], "stop", 1, 0)
    return [late, Generated(message.request_id, tokens, "length", len(tokens), 0)]


def refuse(message: FromClient) -> list[ToClient]:
    if not isinstance(message, Generate | Encode):
        return []
    return [Failed(message.request_id, error_to_wire(CorruptImage("images[0]", "cat.png", "no image")))]


def test_answer_to_another_request_is_not_taken(run_dir: Path) -> None:
    with fake_service(run_dir, echo), Client(run_dir) as client:
        assert client.generate("abc").text == "abc"
        assert client.generate([7, 8, 9]).tokens == [7, 8, 9]


def test_error_arrives_as_its_own_class_with_its_details(run_dir: Path) -> None:
    with fake_service(run_dir, refuse), Client(run_dir) as client:
        with pytest.raises(CorruptImage) as caught:
            client.generate("x")
        assert caught.value.details == {"field": "images[0]", "value": "cat.png", "limit": "no image"}
        assert not caught.value.retryable
        with pytest.raises(CorruptImage):
            client.encode([b"x"])


def test_silence_is_a_deadline_and_the_request_is_cancelled(run_dir: Path) -> None:
    with fake_service(run_dir, silent) as received:
        with Client(run_dir) as client, pytest.raises(DeadlineExceeded) as caught:
            client.generate("x", timeout_s=0.05)
        assert caught.value.retryable
        assert caught.value.details["timeout_s"] == 0.05
        asked = next(message for message in received if isinstance(message, Generate))
        eventually(lambda: [type(m) for m in received][-2:], lambda last: last == [Cancel, ClientBye], "last words")
        assert Cancel(asked.client_id, asked.request_id) in received


def test_nobody_there_is_unavailable(run_dir: Path) -> None:
    RunDir(run_dir).create()
    with pytest.raises(ServiceUnavailable):
        Client(run_dir, connect_timeout_s=0.05, fail_open=False)
    assert list((run_dir / "clients").iterdir()) == []


def test_presence_is_held_while_the_client_lives(run_dir: Path) -> None:
    with fake_service(run_dir, silent):
        with Client(run_dir):
            (lock,) = (run_dir / "clients").iterdir()
            assert is_held(lock)
        assert not lock.exists()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, 1e9, float("nan")])
def test_impossible_timeout_is_refused_before_anything_is_sent(run_dir: Path, timeout_s: float) -> None:
    with fake_service(run_dir, echo) as received, Client(run_dir) as client:
        with pytest.raises(InvalidRequest, match="timeout_s"):
            client.generate("x", timeout_s=timeout_s)
        assert not [message for message in received if isinstance(message, Generate)]


def test_unreadable_image_path_names_its_index(run_dir: Path, tmp_path: Path) -> None:
    with (
        fake_service(run_dir, echo),
        Client(run_dir) as client,
        pytest.raises(InvalidRequest, match=r"images\[1\]"),
    ):
        client.encode([b"data", tmp_path / "missing.png"])


@pytest.mark.parametrize(
    "tensor",
    [Tensor(0, "int32", (1,)), Tensor(0, "no_such_dtype", (0,)), Tensor(3, "int32", (0,)), Tensor(0, "nn", (0,))],
)
def test_tensor_that_does_not_fit_its_frame_is_a_protocol_error(run_dir: Path, tensor: Tensor) -> None:
    def answer(message: FromClient) -> list[ToClient]:
        return [Encoded(message.request_id, [tensor])] if isinstance(message, Encode) else []

    with fake_service(run_dir, answer), Client(run_dir) as client, pytest.raises(RemoteProtocolError):
        client.encode([b"x"])


def test_async_calls_run_at_once_and_each_gets_its_own_answer(run_dir: Path) -> None:
    async def ask() -> list[str]:
        async with AsyncClient(run_dir) as client:
            answers = await asyncio.gather(*(client.generate(f"number {index}") for index in range(50)))
        return [answer.text for answer in answers]

    with fake_service(run_dir, echo):
        assert asyncio.run(ask()) == [f"number {index}" for index in range(50)]


def test_async_cancel_reaches_the_service(run_dir: Path) -> None:
    async def ask(received: list[FromClient]) -> None:
        async with AsyncClient(run_dir) as client:
            task = asyncio.create_task(client.generate("x"))
            while not any(isinstance(message, Generate) for message in received):  # noqa: ASYNC110 (a thread fills it)
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with fake_service(run_dir, silent) as received:
        asyncio.run(asyncio.wait_for(ask(received), 30))
        eventually(lambda: [type(m) for m in received][-2:], lambda last: last == [Cancel, ClientBye], "last words")


def test_async_deadline_and_close_with_open_calls(run_dir: Path) -> None:
    async def ask() -> None:
        async with AsyncClient(run_dir) as client:
            with pytest.raises(DeadlineExceeded):
                await client.generate("x", timeout_s=0.01)
            waiting = asyncio.create_task(client.generate("y"))
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(RequestAborted):
                await waiting
            with pytest.raises(RequestAborted):
                await client.generate("z")

    with fake_service(run_dir, silent):
        asyncio.run(asyncio.wait_for(ask(), 30))


def test_async_nobody_there_is_unavailable(run_dir: Path) -> None:
    async def ask() -> None:
        async with AsyncClient(run_dir, connect_timeout_s=0.05, fail_open=False):
            pass

    RunDir(run_dir).create()
    with pytest.raises(ServiceUnavailable):
        asyncio.run(ask())


def test_failure_without_a_request_ends_all_open_calls(run_dir: Path) -> None:
    """The service could not read a frame: it cannot say which request it was."""

    def answer(message: FromClient) -> list[ToClient]:
        return [Failed(None, error_to_wire(RemoteProtocolError("garbled")))] if isinstance(message, Generate) else []

    async def ask() -> list[MmcachedError]:
        async with AsyncClient(run_dir) as client:
            results = await asyncio.gather(*(client.generate("x") for _ in range(2)), return_exceptions=True)
        return [result for result in results if isinstance(result, MmcachedError)]

    with fake_service(run_dir, answer):
        assert [type(error) for error in asyncio.run(ask())] == [RemoteProtocolError] * 2
        with Client(run_dir) as client, pytest.raises(RemoteProtocolError):
            client.generate("x")


def test_no_call_waits_beyond_its_deadline(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontend hangs; what the contact has left of the time is for the answer, and not a moment more."""
    waits: list[float] = []
    exchange = SyncLink.exchange

    def spy(link: SyncLink, *values: Any, deadline: float, timeout_s: float) -> Any:
        waits.append(deadline - time.monotonic() - timeout_s)
        return exchange(link, *values, deadline=time.monotonic(), timeout_s=timeout_s)

    monkeypatch.setattr(SyncLink, "exchange", spy)
    with fake_service(run_dir, silent), Client(run_dir, timeout_s=50.0) as client:
        for verb in (partial(client.generate, "x"), partial(client.encode, [b"x"]), client.stats, client.probe):
            with pytest.raises(DeadlineExceeded):
                verb(timeout_s=40.0)
    assert len(waits) == 4
    assert max(waits) <= 0.0
