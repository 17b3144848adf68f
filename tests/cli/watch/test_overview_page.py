"""The page at `/`: its figures over HTTP, and, where `make test-web` has brought a browser, what people see of it."""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from mmcached.cli.admin.records import Reader
from mmcached.cli.watch import overview_pages
from mmcached.cli.watch.http_pages import AdminServer
from mmcached.cli.watch.overview import Overview
from mmcached.cli.watch.overview_pages import HISTORY_S, SAMPLE_S, WINDOW_S, OverviewPages
from mmcached.cli.watch.readiness import ReadinessCheck
from mmcached.cli.watch.service_status import Readiness, gather_status
from mmcached.wire.engine_stats import EngineStats, WorkerStats
from mmcached.wire.latency import Latency
from mmcached.wire.slow_log import SlowCall, SlowLog
from mmcached.wire.stats import FrontendStats, RingStats, ServiceStats, StoreStats
from tests.cli.fake_view import ENGINE, FRONTEND, WORKER, FakeView, a_role, get, page_of
from tests.clock import Clock
from tests.house import REPOSITORY

BROWSER = REPOSITORY / ".chromium" / "chromium"
DEADLINE_S = 120.0
EVIL = "<img src=x onerror=alert(1)>"
"""What a client may call itself."""


@contextmanager
def served(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve a service with some of everything, and yield its address."""
    latency = Latency()
    for _ in range(50):
        latency.add(0.0000123)
    ring = RingStats(data_bytes=1 << 30, used_bytes=5 << 26, leases=4, chunks=1234, evictions=3)
    store = StoreStats(
        queries=400, hits=301, hit_latency=latency.histogram(), put_latency=latency.histogram(), ring=ring
    )
    slow = SlowLog((SlowCall(0, "request", 7 * 10**9, 12),))
    given = [
        a_role(FRONTEND, os.getpid(), "running"),
        a_role(ENGINE, os.getpid(), "running"),
        a_role(WORKER, None, "restarting", restarts=2),
    ]
    view = FakeView(run_dir, given=given)
    monkeypatch.setattr("mmcached.cli.watch.http_pages.store_readers", lambda _: [Reader(77, EVIL, 5)])
    with page_of(run_dir, FRONTEND, ENGINE, WORKER) as (reader, writers):
        writers[FRONTEND].publish(FrontendStats(requests_open=3, clients=2, store=store, slow_log=slow))
        writers[ENGINE].publish(EngineStats(requests_waiting=2, requests_running=7))
        writers[WORKER].publish(WorkerStats(encode_latency=latency.histogram()))
        works = Readiness(True, "1 engine(s) and 2 worker(s) answered the probe")
        readiness = ReadinessCheck(view, reader.read, ask=lambda *_: works)
        with AdminServer(view, reader, readiness=readiness) as server:
            yield server.url


def test_the_page_and_its_figures(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(run_dir, monkeypatch) as url:
        code, text, headers = get(f"{url}/")
        assert (code, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert text.encode() == overview_pages.page()
        code, text, headers = get(f"{url}/overview")
    assert (code, headers["content-type"]) == (200, "application/json")
    found = msgspec.json.decode(text, type=Overview)
    assert (found.ready, found.requests_open, found.interval_s) == (True, 3, None)
    assert found.readers == [Reader(77, EVIL, 5)]


def test_whoever_asks_however_often_sees_the_same_window(run_dir: Path) -> None:
    """The supervisor samples; a second viewer, or one who asks for the first time, changes nothing."""
    clock = Clock(100.0)
    pages = OverviewPages(list, clock=clock)
    with page_of(run_dir, FRONTEND) as (reader, _):
        status = gather_status(FakeView(run_dir)(), reader.read(), Readiness(True, "why"))

    def with_hits(hits: int) -> ServiceStats:
        return ServiceStats(store=StoreStats(queries=hits, hits=hits))

    assert pages.overview(status).interval_s is None
    for number in range(12):
        pages.sample(partial(with_hits, 20 * number), list)
        clock.now += SAMPLE_S / 2
        pages.sample(lambda: with_hits(10**9), list)  # too early to be kept
        clock.now += SAMPLE_S / 2
    now = msgspec.structs.replace(status, stats=with_hits(240))
    frames = [pages.overview(now) for _ in range(3)]
    assert frames[0] == frames[1] == frames[2]
    assert frames[0].interval_s == WINDOW_S + SAMPLE_S
    (store,) = (line for line in frames[0].caches if line.name == "store")
    assert (store.hits_per_s, store.rate_now) == (10.0, 1.0)
    assert frames[0].history == [10.0] * 11
    pages.sample(lambda: with_hits(0), list)
    assert pages.overview(status).history[-1] == 0.0, "a service that began anew"
    for _ in range(400):
        clock.now += SAMPLE_S
        pages.sample(lambda: with_hits(0), list)
    assert len(pages.overview(status).history) == HISTORY_S / SAMPLE_S


@pytest.mark.skipif(not BROWSER.exists(), reason="no browser is here: `make test-web` brings one")
@pytest.mark.parametrize("is_dark", [False, True])
def test_what_a_browser_shows(run_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_dark: bool) -> None:
    scheme = f"--blink-settings=preferredColorScheme={int(not is_dark)}"
    out = Path(os.environ.get("MMC_SCREENSHOTS", tmp_path)) / f"{'dark' if is_dark else 'light'}.png"
    with served(run_dir, monkeypatch) as url:
        text = browse(url, tmp_path, "--dump-dom", scheme)
        browse(url, tmp_path, f"--screenshot={out}", scheme, "--window-size=1280,1000")
    shown = ("ready", "frontend", "restarting", "75%", "320.0 MiB", "15 µs", "engine 0", "request", "7 s", "1,234")
    assert [word for word in shown if word not in text] == []
    assert "<b>–</b>p99 of a put now" in text, "one look only: there is no now"
    assert "<img" not in text, "a client's name is text"
    assert "&lt;img src=x" in text
    assert "no answer" not in text.partition("<script>")[0]
    with Image.open(io.BytesIO(out.read_bytes())) as picture:
        corner = picture.convert("L").getpixel((2, 2))
        assert isinstance(corner, int)
        assert (corner < 64) == is_dark
        assert picture.size == (1280, 1000)


def browse(url: str, home: Path, *arguments: str) -> str:
    """Open a page, let its script run, and return what the browser prints."""
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    options = ["--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--virtual-time-budget=1000"]
    command = [str(BROWSER), *as_root, *options, f"--user-data-dir={home / 'profile'}", *arguments, f"{url}/"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout
