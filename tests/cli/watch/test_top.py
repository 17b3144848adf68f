"""top on terminals of all sizes, in a pipe, without a service, and until somebody types q."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from mmcached.cli.admin.records import Reader
from mmcached.cli.watch import top
from mmcached.cli.watch.overview import Overview
from mmcached.cli.watch.service_status import Readiness, ServiceStatus, gather_status
from mmcached.cli.watch.top_frame import Fitted, draw
from mmcached.wire.latency import Latency
from mmcached.wire.slow_log import SlowCall, SlowLog
from mmcached.wire.stats import EngineStats, FrontendStats, RingStats, StoreStats
from tests.cli.fake_view import ENGINE, FRONTEND, FakeView, a_role, page_of

DEADLINE_S = 60.0


@pytest.fixture
def status(run_dir: Path) -> Iterator[ServiceStatus]:
    latency = Latency()
    latency.add(0.0123)
    ring = RingStats(data_bytes=1 << 30, used_bytes=1 << 29, leases=4, evictions=3)
    store = StoreStats(queries=4, hits=3, hit_latency=latency.histogram(), ring=ring)
    slow = SlowLog((SlowCall(0, "request", 7 * 10**9, 12),))
    given = [a_role(FRONTEND, os.getpid(), "running"), a_role(ENGINE, None, "restarting", restarts=2)]
    with page_of(run_dir, FRONTEND, ENGINE) as (reader, writers):
        writers[FRONTEND].publish(FrontendStats(store=store, slow_log=slow))
        writers[ENGINE].publish(EngineStats(requests_waiting=2))
        yield gather_status(FakeView(run_dir, given=given)(), reader.read(), Readiness(False, "[red]why[/]"))


def watcher_of(*answers: ServiceStatus | None) -> top.Watcher:
    """A service that is as these say, one look after the other, and then as the last."""
    left = list(answers)
    return top.Watcher(lambda: left.pop(0) if len(left) > 1 else left[0], lambda: [Reader(77, "vllm", 5)])


def drawn(overview: Overview, width: int) -> str:
    text = io.StringIO()
    Console(width=width, file=text).print(draw(overview))
    return text.getvalue()


def test_a_frame_says_all_of_it(status: ServiceStatus) -> None:
    overview = watcher_of(status).frame()
    assert overview is not None
    text = drawn(overview, 120)
    expected = (
        *("not ready", "[red]why[/]", str(os.getpid()), "restarting", "75%", "12.", " ms"),
        *("50%", "512.0 MiB", "1.0 GiB", "engine 0", "vllm", "77", "request", "7 s"),
    )
    assert [word for word in expected if word not in text] == []


@pytest.mark.parametrize("width", [10, 40, 80, 300])
def test_no_line_is_wider_than_the_terminal(status: ServiceStatus, width: int) -> None:
    overview = watcher_of(status).frame()
    assert overview is not None
    assert max(map(len, drawn(overview, width).splitlines())) <= width


@pytest.mark.parametrize("height", [5, 24, 200])
def test_a_frame_that_does_not_fit_says_how_many_rows_are_left_out(status: ServiceStatus, height: int) -> None:
    overview = watcher_of(status).frame()
    assert overview is not None
    text = io.StringIO()
    console = Console(width=80, height=height, file=text)
    whole = drawn(overview, 80).splitlines()
    console.print(Fitted(draw(overview)), height=height)
    lines = text.getvalue().splitlines()[:height]
    if len(whole) <= height:
        assert "larger window" not in text.getvalue()
    else:
        assert lines[-1].startswith(f"+{len(whole) - height + 1} rows: a larger window")
        assert [line.rstrip() for line in lines[:-1]] == [line.rstrip() for line in whole[: height - 1]]


def test_once_is_one_plain_frame_with_what_happens_now(status: ServiceStatus) -> None:
    text = io.StringIO()
    overview = top.print_once(watcher_of(status), 0.01, Console(width=120, file=text))
    assert overview is not None
    assert overview.interval_s is not None
    assert text.getvalue().count("mmcached ") == 1
    assert "\x1b" not in text.getvalue()


def test_without_a_service_nothing_is_printed() -> None:
    text = io.StringIO()
    assert top.print_once(watcher_of(None), 0.01, Console(width=120, file=text)) is None
    assert not text.getvalue()


def test_a_service_that_comes_back_begins_anew(status: ServiceStatus) -> None:
    watcher = watcher_of(status, None, status)
    frames = [watcher.frame() for _ in range(3)]
    assert [frame is not None and frame.interval_s for frame in frames] == [None, False, None]


PROGRAM = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that ctrl-c is a signal
from rich.console import Console
from mmcached.cli.watch import top
top.show(top.Watcher(lambda: None, list), 0.05, Console(force_terminal=True), "nobody is there")
print("ended in order")
"""


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_it_and_the_terminal_is_as_before(key: bytes) -> None:
    ours, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        ) as child:
            os.close(theirs)
            seen = b""
            while b"nobody is there" not in seen:
                seen += read(ours)
            os.write(ours, key)
            while b"ended in order" not in seen:
                seen += read(ours)
            with contextlib.suppress(OSError):  # the terminal's other end is closed
                while read(ours):
                    pass
            assert child.wait(DEADLINE_S) == 0
    finally:
        os.close(ours)
    assert b"\x1b[?1049h" in seen, "on a screen of its own"
    assert b"\x1b[?1049l" in seen, "and back"
    assert b"Traceback" not in seen


def read(terminal: int) -> bytes:
    """Return what comes next on a terminal."""
    ready, _, _ = select.select([terminal], [], [], DEADLINE_S)
    assert ready
    return os.read(terminal, 4096)
