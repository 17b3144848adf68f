"""Any thread sends; the one that receives hears of what has come, and sends what the kernel did not take at once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from mmcached.client.links.shared_socket import SharedSocket
from mmcached.wire.config import MIB
from mmcached.wire.messages.client import Probed
from mmcached.wire.messages.frontend import Cancel, ClientBye, Encode, Probe
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
        socket.send(Cancel(ME, 1))
        asyncio.run(listen())
        assert socket.receive() == (Probed(1, [0], 2, []), [])
    finally:
        socket.close(ClientBye(ME))


def test_a_receiver_that_sleeps_sends_what_another_thread_could_not(service: StoreService, run_dir: Path) -> None:
    socket = SharedSocket(RunDir(run_dir).client_address)
    is_over = threading.Event()

    def receive() -> None:
        while not is_over.is_set():
            if socket.receive() is None:
                socket.sleep(DEADLINE_S)

    socket.send(Cancel(ME, 1))  # connects
    receiver = threading.Thread(target=receive)
    receiver.start()
    try:
        socket.send(Encode(ME, 1, 1.0), [bytes(8 * MIB)])
        eventually(lambda: service.count(Encode), bool, "the large message")
    finally:
        is_over.set()
        socket.ring()
        receiver.join()
        socket.close(ClientBye(ME))
