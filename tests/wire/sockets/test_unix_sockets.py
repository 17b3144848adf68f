"""Who listens at a unix socket, and whose name it is."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import zmq

from mmcached.wire.messages.client import ToClient
from mmcached.wire.messages.frontend import FromClient, Probe
from mmcached.wire.sockets.channels import DealerChannel, RouterChannel
from mmcached.wire.sockets.unix_sockets import Listener, NamedListener, listener_at


def test_the_kernel_says_who_listens(run_dir: Path) -> None:
    path = run_dir / "s"
    assert listener_at(path) is None
    listener = NamedListener(path, 8)
    with listener.socket:
        assert listener_at(path) == Listener(os.getpid(), os.geteuid())
    assert path.exists()
    assert listener_at(path) is None
    listener.remove_name()
    listener.remove_name()
    assert not path.exists()


def test_a_full_queue_is_somebody(run_dir: Path) -> None:
    path = run_dir / "s"
    with NamedListener(path, 0).socket, socket.socket(socket.AF_UNIX) as waiting:
        waiting.connect(str(path))
        with pytest.raises(BlockingIOError):
            listener_at(path)


def test_the_name_is_left_to_who_has_it_by_now(run_dir: Path) -> None:
    first = NamedListener(run_dir / "s", 8)
    second = NamedListener(run_dir / "s", 8)
    with first.socket, second.socket:
        assert not first.is_named()
        first.remove_name()
        assert second.is_named()


def test_a_channel_that_closes_leaves_the_name_to_its_successor(run_dir: Path) -> None:
    address = f"ipc://{run_dir / 's'}"
    with zmq.Context() as context:
        first: RouterChannel[FromClient] = RouterChannel(context, address, FromClient)
        with RouterChannel[FromClient](context, address, FromClient) as second:
            first.close()
            with DealerChannel[ToClient](context, address, ToClient) as client:
                client.send(Probe(1, 1.0))
                assert second.wait(60)
        assert not (run_dir / "s").exists()
