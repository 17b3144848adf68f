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

import msgspec
import pytest
from rich.console import Console

from mmcached.cli.admin.records import Reader
from mmcached.cli.watch.overview import Overview, look_closely, overview_of
from mmcached.cli.watch.service_status import Readiness, ServiceStatus, gather_status
from mmcached.cli.watch.shown_figures import CACHES, ModalityLine
from mmcached.cli.watch.top_frame import Fitted, draw
from mmcached.wire.engine_stats import EngineStats
from mmcached.wire.latency import Latency
from mmcached.wire.slow_log import SlowCall, SlowLog
from mmcached.wire.stats import FrontendStats, RingStats, StoreStats
from tests.cli.fake_view import ENGINE, FRONTEND, FakeView, a_role, drawn, page_of

DEADLINE_S = 60.0


@pytest.fixture
def status(run_dir: Path) -> Iterator[ServiceStatus]:
    latency = Latency()
    latency.add(0.0123)
    ring = RingStats(data_bytes=1 << 30, used_bytes=1 << 29, leases=4, evictions=3)
    store = StoreStats(
        queries=4, hits=3, hit_latency=latency.histogram(), ring=ring, nurseries=3, nursery_bytes=48 << 20
    )
    slow = SlowLog((SlowCall(0, "request", 7 * 10**9, 12),))
    given = [a_role(FRONTEND, os.getpid(), "running"), a_role(ENGINE, None, "restarting", restarts=2)]
    with page_of(run_dir, FRONTEND, ENGINE) as (reader, writers):
        writers[FRONTEND].publish(FrontendStats(store=store, slow_log=slow))
        writers[ENGINE].publish(EngineStats(requests_waiting=2))
        yield gather_status(FakeView(run_dir, given=given)(), reader.read(), Readiness(False, "[red]why[/]"))


def frame_of(status: ServiceStatus) -> Overview:
    return overview_of(look_closely(status), None, [Reader(77, "vllm", 5)])


def test_a_frame_says_all_of_it(status: ServiceStatus) -> None:
    overview = frame_of(status)
    text = drawn(draw(overview), width=120)
    expected = (
        *("not ready", "[red]why[/]", str(os.getpid()), "restarting", "75%", "12.", " ms"),
        *(
            "50%",
            "512.0 MiB",
            "1.0 GiB",
            "nurseries",
            "48.0 MiB",
            "64.0 MiB",
            "engine 0",
            "vllm",
            "77",
            "request",
            "7 s",
        ),
    )
    assert [word for word in expected if word not in text] == []


@pytest.mark.parametrize("width", [10, 40, 80, 300])
def test_no_line_is_wider_than_the_terminal(status: ServiceStatus, width: int) -> None:
    overview = frame_of(status)
    assert max(map(len, drawn(draw(overview), width=width).splitlines())) <= width


@pytest.mark.parametrize("height", [5, 24, 200])
def test_a_frame_that_does_not_fit_says_how_many_rows_are_left_out(status: ServiceStatus, height: int) -> None:
    overview = frame_of(status)
    text = io.StringIO()
    console = Console(width=80, height=height, file=text)
    whole = drawn(draw(overview), width=80).splitlines()
    console.print(Fitted(draw(overview)), height=height)
    lines = text.getvalue().splitlines()[:height]
    num_left_out = len(whole) - (height - 1)
    rows = f"+{num_left_out} rows: a larger window shows them; " if num_left_out > 0 else ""
    assert lines[-1] == f"{rows}q ends"
    assert [line.rstrip() for line in lines[:-1]] == [line.rstrip() for line in whole[: height - 1]]


def test_large_figures_fit_into_80_columns(status: ServiceStatus) -> None:
    """A figure that would be cut has a unit instead."""
    replace, huge, size = msgspec.structs.replace, 123_456_789_012, 123 << 30
    frame = frame_of(status)
    (cache, *_), (ring,), (engine,), (role, *_) = frame.caches, frame.rings, frame.engines, frame.roles
    assert frame.nurseries is not None
    figures = {"rate": 1.0, "rate_now": 1.0, "hits_per_s": 1_234_567.0, "queries": huge, "hits": huge}
    of_ring = {"entries": huge, "leases": 12_345, "evictions_per_s": 1_234_567.0}
    of_nurseries = {"num": 65_536, "puts": huge, "puts_per_s": 1_234_567.0, "promotions": huge, "refusals": huge}
    of_engine = {"running": 1234, "waiting": 12_345, "finished": huge, "kv_used": 123_456, "kv_total": 123_456}
    large = replace(
        frame,
        caches=[replace(cache, name=name, **figures) for name in CACHES],
        rings=[replace(ring, used_bytes=size, capacity_bytes=size, leased_bytes=size, **of_ring)],
        nurseries=replace(frame.nurseries, used_bytes=size, budget_bytes=size, **of_nurseries),
        engines=[replace(engine, leases=12_345, steps_per_s=1234.0, **of_engine)],
        roles=[replace(role, name="second level", pid=1 << 22, cpu=1234.5, memory_bytes=size, state="silent for 99 s")],
        modalities=[
            ModalityLine(
                name="image", queries=huge, hits=huge, processed=huge, encoded=huge, loaded=huge, embeds_encoded=huge
            )
        ],
        history=[1_234_567.0] * 300,
    )
    assert "…" not in drawn(draw(large), width=80)


def test_a_frame_draws_the_hits_of_the_last_minutes(status: ServiceStatus) -> None:
    assert "store hits/s" not in drawn(draw(frame_of(status)), width=80)
    rates = [0.0] * 100 + [50.0] * 100 + [100.0] * 100
    (line,) = (
        line
        for line in drawn(draw(msgspec.structs.replace(frame_of(status), history=rates)), width=80).splitlines()
        if "store hits/s" in line
    )
    assert line.strip() == f"store hits/s, 10 min 0 s: {' ' * 10}{'▄' * 10}{'█' * 10} most 100"


PROGRAM = """
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that ctrl-c is a signal
from rich.console import Console
from mmcached.cli.watch import top
top.show(lambda: None, 0.05, Console(force_terminal=True), "nobody is there")
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
