"""A Ray cluster that is not there is said to be missing at once. With a double of Ray."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from mmcached.wire.errors import ServiceUnavailable
from mmcached.worker.encoders.ray_actors import connect


class _RayError(Exception):
    pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses for which Ray itself is asked."""
    found: list[str] = []

    def init(address: str, **options: Any) -> None:
        found.append(address)

    ray = SimpleNamespace(init=init, shutdown=lambda: None, exceptions=SimpleNamespace(RayError=_RayError))
    monkeypatch.setitem(sys.modules, "ray", ray)
    return found


def test_a_head_that_is_not_there_is_said_without_asking_ray(asked: list[str]) -> None:
    with socket.socket() as bound:  # which does not listen
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ServiceUnavailable, match=f"no Ray cluster can be reached at {address}: ConnectionRefused"):
            connect(address, "mmcached")
    assert asked == []


def test_a_head_that_listens_is_ray_s_to_talk_to(asked: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        connect(address, "mmcached")
    connect("auto", "mmcached")
    assert asked == [address, "auto"]
