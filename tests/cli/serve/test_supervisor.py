"""What a supervisor refuses, and what it leaves alone. Its roles' lives and deaths: test_role_group."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mmcached.cli.progress import Tell
from mmcached.cli.serve.supervisor import Supervisor
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, SegmentError, ServiceUnavailable
from mmcached.wire.process.signals import STOP_SIGNALS

CONFIG = ServiceConfig(world_size=1, mm_processor_cache_gb=1 / 64, store_gb=1 / 64)


@pytest.fixture(autouse=True)
def no_role(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A supervisor takes signals: the tests' process takes them back. None of these tests may start a process."""

    def refuse(command: list[str], **options: object) -> None:
        raise AssertionError(command)

    monkeypatch.setattr(subprocess, "Popen", refuse)
    before = {each: signal.getsignal(each) for each in STOP_SIGNALS}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


def test_a_service_whose_directory_is_another_s_by_now_ends_and_takes_nothing_with_it(run_dir: Path) -> None:
    with Supervisor(run_dir / "s", CONFIG) as supervisor:
        path = supervisor.run_dir
        shutil.rmtree(path)
        path.mkdir(mode=0o700)
        theirs = [path / name for name in ("client.sock", "http.sock", "config.json", "stats.page")]
        for each in theirs:
            each.touch()
        with pytest.raises(ServiceUnavailable, match="was moved or replaced"):
            supervisor.turn(time.monotonic())
    assert all(each.exists() for each in theirs)


def test_a_start_is_shown_while_it_lasts(run_dir: Path) -> None:
    seen: list[str] = []

    @contextmanager
    def working(words: str) -> Iterator[Tell]:
        yield seen.append
        raise AssertionError("nothing was started")

    with Supervisor(run_dir / "s", CONFIG, working=working) as supervisor, pytest.raises(AssertionError):
        supervisor.run()
    assert seen == [f"starting frontend, engine and 1 worker(s) in {run_dir / 's'}"]


def test_what_cannot_be_served_is_refused_before_anything_is_started(run_dir: Path) -> None:
    file = run_dir / "file"
    file.touch()
    for path in (file, Path("/proc/mmcached")):
        with pytest.raises(ConfigError, match="run_dir"):
            Supervisor(path, CONFIG)
    with pytest.raises(SegmentError, match="MiB"):
        Supervisor(run_dir / "s", ServiceConfig(store_gb=4096.0))
