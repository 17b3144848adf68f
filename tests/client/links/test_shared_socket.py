"""A sender and the receiver share ZeroMQ's one signal that something has come; who swallows it rings."""

from __future__ import annotations

import asyncio
from pathlib import Path

from mmcached.client.links.shared_socket import SharedSocket
from mmcached.wire.messages.client import Probed
from mmcached.wire.messages.frontend import Cancel, ClientBye, Probe
from mmcached.wire.paths import RunDir
from tests.client.services import StoreService
from tests.integration.processes import DEADLINE_S, eventually

ME = "0" * 32


def test_an_event_loop_hears_of_what_came_before_a_send(service: StoreService, run_dir: Path) -> None:
    """Nothing else would wake it: it looks at no clock."""

    async def listen() -> None:
        has_heard = asyncio.Event()
        socket.watch(asyncio.get_running_loop(), has_heard.set)
        try:
            await asyncio.wait_for(has_heard.wait(), DEADLINE_S)
        finally:
            socket.unwatch()

    socket = SharedSocket(RunDir(run_dir).client_address)
    try:
        service.hold = (Probe,)
        socket.send(Probe(1, 1.0))
        eventually(lambda: service.num_held, lambda count: count == 1, "the question")
        assert socket.receive() is None
        service.release()
        socket.sleep(DEADLINE_S)  # the answer has come
        for _ in range(100):  # ZeroMQ looks at its signal in some of them
            socket.send(Cancel(ME, 1))
        asyncio.run(listen())
        assert socket.receive() == (Probed(1, [0], 2, []), [])
    finally:
        socket.close(ClientBye(ME))
