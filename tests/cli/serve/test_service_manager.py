"""What systemd hears of a service, and what it does not. A whole service that is heard: test_store_alone."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmcached.cli.serve.service_manager import ServiceManager
from mmcached.cli.serve.supervisor import Supervisor
from mmcached.wire.config import ServiceConfig
from mmcached.wire.process.signals import STOP_SIGNALS


@pytest.fixture
def ear(run_dir: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(run_dir / "notify"))
        listener.setblocking(False)
        yield listener


def heard(listener: socket.socket) -> list[str]:
    """Return what was said since the last call."""
    words: list[str] = []
    while True:
        try:
            words += listener.recv(4096).decode().splitlines()
        except BlockingIOError:
            return words


def test_each_state_is_said_and_words_only_when_they_are_news(ear: socket.socket) -> None:
    manager = ServiceManager(ear.getsockname(), watchdog_s=30.0)
    for words in ("starting", "starting", "not\nready"):
        manager.status(words)
    manager.ready()
    for now in (100.0, 109.0, 110.0):
        manager.works(now)
    manager.stopping()
    said = ["STATUS=starting", "STATUS=not ready", "READY=1", "WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]
    assert heard(ear) == [*said, "STATUS=draining"]


def test_an_abstract_name_is_an_address_too() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0mmcached-test-{os.getpid()}")
        ServiceManager(f"@mmcached-test-{os.getpid()}").ready()
        assert listener.recv(64) == b"READY=1"


def test_the_environment_names_the_manager_once(ear: socket.socket) -> None:
    for pid, num_pings in ((str(os.getpid()), 1), ("", 1), ("1", 0)):
        environment = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": pid, "A": "b"}
        manager = ServiceManager.from_environment(environment)
        assert environment == {"A": "b"}, "children do not speak for us"
        manager.works(1.0)
        assert heard(ear) == ["WATCHDOG=1"] * num_pings
    ServiceManager.from_environment({}).ready()  # nobody to tell


def test_a_manager_that_is_gone_or_does_not_read_costs_a_second_at_most(
    ear: socket.socket, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmcached.cli.serve.service_manager.SEND_TIMEOUT_S", 0.001)
    ServiceManager(str(run_dir / "nobody")).ready()
    for number in range(2000):
        ServiceManager(ear.getsockname()).status(str(number))
    assert 0 < len(heard(ear)) < 2000


def test_a_service_through_which_nothing_goes_is_not_said_to_work(ear: socket.socket, run_dir: Path) -> None:
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    manager = ServiceManager(ear.getsockname(), watchdog_s=0.3)
    config = ServiceConfig(world_size=0, store_gb=1 / 64)
    with Supervisor(run_dir / "s", config, manager=manager) as supervisor:
        supervisor.turn(time.monotonic())
        assert heard(ear) == ["STATUS=not ready: the frontend has not answered a probe yet"]
    assert heard(ear) == ["STOPPING=1", "STATUS=draining"]
    for each, handler in before.items():
        signal.signal(each, handler)
