"""`mmcached serve --workers 0`: a supervisor and a frontend, which is killed once; and a service that follows it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mmcached.cli.admin.observe import fetch
from mmcached.cli.admin.shm_list import list_segments
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.shm import sweep
from mmcached.wire.errors import InvalidRequest
from tests.integration.processes import DEADLINE_S, descendants, eventually, role_pids, segments_of, small_config
from tests.integration.test_watching import counters, mmcached
from tests.present import present

MAX_RESIDENT_KIB = 60 << 10
RECORD = {"x": np.arange(100_000, dtype=np.int64)}


def resident_kib(pid: int) -> int:
    """Return the memory that a process has beside the rings, KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return sum(int(kib) for kib in re.findall(r"^(?:RssAnon|RssFile):\s+(\d+) kB$", status, re.MULTILINE))


def page(service: ChildService, path: str) -> str:
    return fetch(service.run_dir, path, DEADLINE_S).decode()


def frontend_of(service: ChildService) -> int | None:
    """Return the frontend's pid; nothing else may run."""
    pids = role_pids(service.process.pid)
    assert pids["engine"] == pids["worker"] == []
    return pids["frontend"][0] if pids["frontend"] else None


def test_a_service_without_workers_is_a_store(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_others = set(shown_segments())
    config = small_config(world_size=0, restart_backoff_s=0.05, keep_cache=True)
    with (
        ChildService(run_dir / "s", config, tmp_path / "config.json") as service,
        Client(service.run_dir, name="tester") as client,
    ):
        first = present(frontend_of(service))
        assert descendants(service.process.pid) == [first]
        use_the_store(client)
        assert {path.suffix for path in segments_of([first])} == {".ctl", ".data"}
        assert len(segments_of([first])) == 2, "the store's ring, and no other; nurseries are not mapped"
        assert resident_kib(first) <= MAX_RESIDENT_KIB
        with pytest.raises(InvalidRequest, match="this service is a store"):
            client.generate("hello", max_tokens=1)
        watch(service)
        for verb in (["flush"], ["flush", "--epoch"]):
            assert client.put("key", RECORD)
            assert mmcached(service, *verb).returncode == 0
            assert client.get("key") is None
        assert client.put("kept", RECORD)
        os.kill(first, signal.SIGKILL)
        assert client.contains_many(["kept"]) == [True]
        eventually(lambda: frontend_of(service), lambda pid: pid not in (None, first), "another frontend")
        eventually(lambda: client.put("after", RECORD), bool, "a put after the kill")
        use_the_store(client)
        eventually(lambda: page(service, "/readyz"), lambda answer: answer.startswith("ready"), "readiness")
        restarts = counters(page(service, "/metrics"))["mmcached_process_restarts_total", (("role", "frontend"),)]
        assert restarts == 1
        assert holds_kept(client)
        assert service.stop() == 0
        assert holds_kept(client), "nobody runs"
    assert {state for _, state in shown_segments() - of_others} == {"kept"}
    sweep()
    follower = small_config(world_size=0, log_level="info")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(run_dir / "notify"))
        systemd.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", str(run_dir / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        with (
            ChildService(run_dir / "s", follower, tmp_path / "config.json") as service,
            Client(service.run_dir) as client,
        ):
            assert holds_kept(client)
            use_the_store(client)
            assert page(service, "/status")
            hear(systemd, "READY=1", "STATUS=ready", "WATCHDOG=1")
            assert service.stop() == 0
        hear(systemd, "STOPPING=1")
    assert shown_segments() <= of_others


def test_a_crashed_service_keeps_its_store_whoever_else_starts_or_tidies_up(run_dir: Path, tmp_path: Path) -> None:
    config = small_config(world_size=0)
    first = ChildService(run_dir / "a", config, tmp_path / "a.json")
    with first, Client(first.run_dir) as client:
        assert client.put("kept", RECORD)
        first.process.kill()
        orphaned = ("orphaned", str(first.run_dir))
        eventually(states_by_directory, lambda found: orphaned in found, "its frontend has followed it")
        with ChildService(run_dir / "b", config, tmp_path / "b.json", log_file=tmp_path / "log"):
            assert orphaned in states_by_directory()
            command = [sys.executable, "-m", "mmcached", "shm", "gc"]
            tidied = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
            assert tidied.stdout.count(f"the next service in {first.run_dir} adopts it") == 3
    assert (tmp_path / "log").read_text() == "", "started quietly, it says the ready line alone"
    with (
        ChildService(run_dir / "a", config, tmp_path / "a.json") as second,
        Client(second.run_dir, fail_open=False) as client,
    ):
        assert holds_kept(client)


def hear(systemd: socket.socket, *words: str) -> None:
    """Return when the service has said all of this, in this order, among other things."""
    for word in words:
        while word not in systemd.recv(4096).decode().splitlines():
            pass


def holds_kept(client: Client) -> bool:
    found = client.get("kept")
    return found is not None and np.array_equal(found.record["x"], RECORD["x"])


def shown_segments() -> set[tuple[str, str]]:
    """Return names and states: those of this test, and of services that other tests share."""
    return {(entry.name, entry.state) for entry in list_segments()}


def states_by_directory() -> set[tuple[str, str]]:
    return {(entry.state, entry.run_dir) for entry in list_segments()}


def use_the_store(client: Client) -> None:
    assert client.get("other") is None
    assert client.put("key", RECORD)
    found = present(client.get("key"))
    assert np.array_equal(found.record["x"], RECORD["x"])
    assert client.contains_many(["key", "other"]) == [True, False]
    computed = client.get_or_compute("computed", lambda: RECORD)
    assert np.array_equal(computed["x"], RECORD["x"])
    assert client.drop("key")
    assert client.drop("computed")


def watch(service: ChildService) -> None:
    """Look at it in every way."""
    shown = mmcached(service, "status")
    assert shown.returncode == 0, shown.stdout
    assert "no engine to reach" in shown.stdout
    assert mmcached(service, "ping").returncode == 0
    expected = "ready: the frontend answered the probe"
    eventually(lambda: page(service, "/readyz"), lambda answer: answer.startswith(expected), "readiness")
    for hits in (
        ("mmcached_cache_hits_total", (("cache", "store"), ("role", "frontend"))),
        ("mmcached_client_hits_total", (("client", "tester"), ("role", "frontend"))),
    ):
        eventually(lambda: counters(page(service, "/metrics")), lambda figures: figures[hits] > 0, "hits on the page")  # noqa: B023
    with Client(service.run_dir) as client:
        stats = client.stats()
    assert (stats.engines, stats.items.capacity_bytes, stats.processor.queries) == ([], 0, 0)
