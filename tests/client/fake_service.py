"""A frontend that says only what a test tells it to: for what a real one does not do on purpose."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from mmcached.wire.errors import PeerGone
from mmcached.wire.messages.client import ToClient, Welcome
from mmcached.wire.messages.frontend import ClientHello, FromClient
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.channels import RouterChannel

Reply = Callable[[FromClient], list[ToClient]]
WELCOME = Welcome("fake", 258, 257, 64, 8192)


@contextmanager
def fake_service(path: Path, reply: Reply) -> Iterator[list[FromClient]]:
    """Serve `path` in a thread; yield the list of messages that have come so far."""
    directory = RunDir(path)
    directory.create()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    channel: RouterChannel[FromClient] = RouterChannel(context, directory.client_address, FromClient)
    received: list[FromClient] = []
    stop = threading.Event()

    def loop() -> None:
        while not stop.is_set():
            if not channel.wait(0.005):
                continue
            while (raw := channel.receive_raw()) is not None:
                peer, frames = raw
                message, _ = channel.decode(frames)
                received.append(message)
                answers = [WELCOME] if isinstance(message, ClientHello) else reply(message)
                for answer in answers:
                    with contextlib.suppress(PeerGone):  # it has closed: on a busy machine its last question comes late
                        channel.send(peer, answer)
        channel.close()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield received
    finally:
        stop.set()
        thread.join(30)
        context.term()
