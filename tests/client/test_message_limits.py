"""What is larger than the service reads is refused before it is sent, and costs no other call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.client import AsyncClient
from mmcached.client.links.shared_socket import SharedSocket
from mmcached.frontend.connections.listening import message_limits
from mmcached.wire.config import MIB
from mmcached.wire.errors import InvalidRequest, RemoteProtocolError, error_to_wire
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.client import Failed
from mmcached.wire.messages.frontend import Cancel, ClientBye, Encode, Generate
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame, encode_frames
from tests.client.blocking import Make
from tests.client.services import StoreService
from tests.integration.processes import eventually

ME = "0" * 32


class RefusingService(StoreService):
    """Says of an unreadable message what the frontend does.

    Attributes:
        refused: what was wrong with such messages.
    """

    def __init__(self, path: Path, **config: Any) -> None:
        super().__init__(path, **config)
        self.refused: list[RemoteProtocolError] = []

    def refuse(self, peer: bytes, error: RemoteProtocolError) -> None:
        self.refused.append(error)
        self.listener.try_send(peer, Failed(None, error_to_wire(error)))


@pytest.fixture
def service(run_dir: Path) -> Iterator[RefusingService]:
    limits = LimitsConfig(max_message_mb=3)
    with RefusingService(run_dir, store_max_object_mb=4, limits=limits) as running:
        yield running


def test_a_message_that_is_too_large_fails_alone(service: RefusingService, run_dir: Path) -> None:
    async def ask() -> None:
        service.hold = (Encode,)
        async with AsyncClient(run_dir, timeout_s=30.0) as client:
            small = asyncio.create_task(client.encode([bytes(8)]))
            await asyncio.to_thread(eventually, lambda: service.num_held, lambda count: count == 1, "the small one")
            with pytest.raises(InvalidRequest) as caught:
                await client.generate("x", [bytes(3 * MIB)])
            assert caught.value.details["field"] == "message.bytes"
            service.release()
            assert (await small)[0].tolist() == [0, 0]

    asyncio.run(ask())


def generate(num_tokens: int) -> Generate:
    """Return a request whose tokens take a byte each."""
    return Generate(ME, 1, [0] * num_tokens, 1, None, 1.0)


def num_body_bytes(num_tokens: int) -> int:
    return len(encode_frames(generate(num_tokens))[1])


@pytest.mark.parametrize("field", ["message.frames", "message.bytes", "message.body_bytes"])
def test_the_largest_message_is_read_and_one_larger_is_not_sent(
    service: RefusingService, run_dir: Path, field: str
) -> None:
    limits = message_limits(service.config)
    version = encode_frames(generate(0))[0]

    def message(excess: int) -> tuple[Generate, list[Frame]]:
        match field:
            case "message.frames":
                return generate(1), [b""] * (limits.max_frames + excess - 2)
            case "message.bytes":
                return generate(1), [bytes(limits.max_bytes + excess - len(version) - num_body_bytes(1))]
            case _:
                overhead = num_body_bytes(1 << 20) - (1 << 20)
                return generate(limits.max_body_bytes + excess - overhead), []

    socket = SharedSocket(RunDir(run_dir).client_address)
    socket.limits = limits
    try:
        with pytest.raises(InvalidRequest) as caught:
            socket.send(*message(1))
        value: int = getattr(limits, field.replace("message.", "max_"))
        assert caught.value.details["field"] == field
        assert caught.value.details["value"] == value + 1
        assert str(value) in str(caught.value.details["limit"])
        socket.send(*message(0))
        socket.send(Cancel(ME, 1))
        eventually(lambda: (socket.receive(), service.count(Cancel)), lambda seen: seen == (None, 1), "the last word")
        assert service.count(Generate) == 1
        assert not service.refused
    finally:
        socket.close(ClientBye(ME))


def test_a_record_that_is_too_large_to_send_is_not_kept(service: RefusingService, run_dir: Path, make: Make) -> None:
    record = {"x": np.zeros(3 * MIB, np.uint8)}
    with make(run_dir, fail_open=False) as client:
        assert not client.put("k", record)
        assert client.get_or_compute("k", lambda: record) is record
        assert client.store_counters().causes == {"too large": 2}
        assert client.put("k", {"x": 1})
    assert not service.refused
