"""What a service looks like: the supervisor's word, the page's figures and the kernel's states in one record."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from mmcached.cli.watch.latencies import LatencyStatus, histograms_of
from mmcached.cli.watch.overview import look_closely, overview_of
from mmcached.cli.watch.service_status import (
    Readiness,
    RoleStatus,
    ServiceStatus,
    gather_status,
    process_state,
    role_statuses,
    view_of_page,
)
from mmcached.cli.watch.shown_figures import WORK, caches_of, modalities_of
from mmcached.cli.watch.top_frame import draw
from mmcached.shm.files.lock_file import LockFile
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EncodedByModality, EncodedOfModality, EncoderCacheStats, EngineStats, WorkerStats
from mmcached.wire.fetch_stats import WARM_UP_STATES, FetchStats, PinStats
from mmcached.wire.latency import Latency
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import (
    ClientStats,
    FrontendStats,
    ItemsByModality,
    ItemsOfModality,
    ProcessorCacheStats,
    RoleName,
    ServiceStats,
    StoreStats,
    SupervisorStats,
)
from tests.cli.fake_view import ENGINE, FRONTEND, WORKER, FakeView, a_role, drawn, page_of
from tests.shm.processes import wait_until

SUPERVISOR = RoleName("supervisor")
US = os.getpid()


@contextmanager
def a_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing, until the end of the block."""
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        try:
            yield child
        finally:
            child.kill()


def test_states_are_the_kernels_where_it_knows_better() -> None:
    with a_process() as child:
        view = a_role(ENGINE, child.pid, "running")
        assert [role.state for role in role_statuses(FakeView(Path("/"), given=[view])(), {})] == ["running"]
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: process_state(child.pid) == "T")
        (stopped,) = role_statuses(FakeView(Path("/"), given=[view])(), {})
        assert stopped.state == "stopped"
        assert stopped.complaint == f"engine 0 (pid {child.pid}) is stopped (state T)"
        child.kill()
        wait_until(lambda: process_state(child.pid) == "Z")
        (dead,) = role_statuses(FakeView(Path("/"), given=[view])(), {})
        assert dead.state == "dead"
        child.wait(60)
        assert process_state(child.pid) is None
        (gone,) = role_statuses(FakeView(Path("/"), given=[view])(), {})
        assert gone.complaint == f"engine 0 (pid {child.pid}) is dead"


def test_what_is_not_installed_has_a_status_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> NoReturn:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    status = gather_status(FakeView(Path("/"))(), {}, Readiness(ready=False, reason="", checked_ago_s=0.0))
    assert status.version == "not installed"


@pytest.mark.parametrize(
    ("role", "complaint"),
    [
        (RoleStatus(name="engine 0", pid=7, state="running"), ""),
        (RoleStatus(name="engine 0", pid=7, state="running", heartbeat_age_s=0.5), ""),
        (
            RoleStatus(name="engine 0", pid=7, state="running", heartbeat_age_s=7.25),
            "engine 0 (pid 7) is alive, but its last heartbeat was 7.2 s ago",
        ),
        (
            RoleStatus(name="engine 0", pid=7, state="stopped", heartbeat_age_s=3.0),
            "engine 0 (pid 7) is stopped (state T), last heartbeat 3.0 s ago",
        ),
        (
            RoleStatus(name="worker 0.1", pid=None, state="restarting", restarts=2),
            "worker 0.1 is restarting (restarts so far: 2)",
        ),
        (
            RoleStatus(name="frontend", pid=None, state="failed", restarts=5),
            "frontend died too often and was given up after 5 restarts",
        ),
        (RoleStatus(name="frontend", pid=9, state="starting"), "frontend (pid 9) is starting"),
    ],
)
def test_a_complaint_says_what_is_wrong(role: RoleStatus, complaint: str) -> None:
    assert role.complaint == complaint


def test_a_slot_that_a_former_process_wrote_is_not_this_ones_heartbeat(run_dir: Path) -> None:
    with page_of(run_dir, ENGINE) as (reader, _):
        for pid, has_heartbeat in ((US, True), (US + 1, False)):
            (found,) = role_statuses(FakeView(run_dir, given=[a_role(ENGINE, pid, "restarting")])(), reader.read())
            assert (found.heartbeat_age_s is not None) == has_heartbeat


def test_the_supervisor_leads_and_is_there_once(run_dir: Path) -> None:
    with page_of(run_dir, SUPERVISOR, FRONTEND) as (reader, _):
        frontend = a_role(FRONTEND, US, "running")
        for given in ([frontend], [a_role(SUPERVISOR, US, "running"), frontend]):
            names = [each.name for each in role_statuses(FakeView(run_dir, given=given)(), reader.read())]
            assert names == ["supervisor", "frontend"]


def test_status_survives_json(run_dir: Path) -> None:
    view = FakeView(
        run_dir,
        given=[a_role(ENGINE, US, "running", restarts=2, up_since="1970-01-02T00:00:00+00:00")],
        is_draining=True,
    )
    with page_of(run_dir, ENGINE) as (reader, _):
        status = gather_status(view(), reader.read(), Readiness(False, "draining", 0.5))
    assert msgspec.json.decode(msgspec.json.encode(status), type=ServiceStatus) == status
    assert (status.ready, status.reason, status.draining) == (False, "draining", True)
    assert status.config_digest == view.config.digest()
    assert status.roles[0].restarts == 2
    assert status.roles[0].up_since == "1970-01-02T00:00:00+00:00"


def test_the_page_stands_in_for_the_supervisor(run_dir: Path) -> None:
    with page_of(run_dir, SUPERVISOR, ENGINE) as (reader, writers):
        writers[SUPERVISOR].publish(SupervisorStats(draining=1))
        writers[ENGINE].close()
        view = view_of_page(run_dir, ServiceConfig(), reader.read())
    assert view.is_draining
    found = {role.name: role for role in view.roles}
    assert (found["supervisor"].state, found["supervisor"].pid) == ("running", US)
    assert (found["engine 0"].state, found["engine 0"].restarts) == ("ended", 0)


def test_the_table_shows_roles_and_caches(run_dir: Path) -> None:
    view = FakeView(run_dir, given=[a_role(ENGINE, US, "running"), a_role(WORKER, None, "restarting", restarts=1)])
    with page_of(run_dir, ENGINE) as (reader, writers):
        writers[ENGINE].publish(EngineStats(encoder=EncoderCacheStats(queries=4000, hits=1000)))
        status = gather_status(view(), reader.read(), Readiness(False, "[red]why[/]"))
    text = drawn(status)
    for expected in ("not ready", "[red]why[/]", str(US), "restarting", "worker 0.1", "4,000", "25%"):
        assert expected in text


def test_the_table_has_a_line_for_each_name_of_clients_if_there_is_more_than_one(run_dir: Path) -> None:
    by_client = {"vllm": ClientStats(hits=4000, misses=2, puts=1), "sglang": ClientStats(misses=3)}
    shown = []
    with page_of(run_dir, FRONTEND) as (reader, writers):
        for names in (["vllm"], ["vllm", "sglang"]):
            writers[FRONTEND].publish(FrontendStats(by_client={name: by_client[name] for name in names}))
            status = gather_status(FakeView(run_dir)(), reader.read(), Readiness(True, "why"))
            text = drawn(status)
            assert msgspec.json.decode(msgspec.json.encode(status), type=ServiceStatus) == status
            shown.append([line for line in text.splitlines() if "puts" in line])
    lines = ["store, sglang: 0 hits, 3 misses, 0 puts", "store, vllm: 4,000 hits, 2 misses, 1 puts"]
    assert shown == [[], lines]


def test_pins_and_a_warm_up_are_shown_where_there_are_any(run_dir: Path) -> None:
    fetches = FetchStats(warmed=1234, warm_skipped=5, warm_up=WARM_UP_STATES.index("running"))
    shown = []
    with page_of(run_dir, FRONTEND) as (reader, writers):
        for store in (StoreStats(), StoreStats(fetches=fetches, pins=PinStats(records=1, bytes=4096))):
            writers[FRONTEND].publish(FrontendStats(store=store))
            status = gather_status(FakeView(run_dir)(), reader.read(), Readiness(True, "why"))
            lines = (drawn(status) + drawn(draw(overview_of(look_closely(status), None)))).splitlines()
            shown.append([line.strip() for line in lines if "pinned" in line or "warm-up" in line])
    line = "pinned by clients: 1 record, 4,096 B; warm-up: running, 1,234 records fetched, 5 skipped"
    assert shown == [[], [line, line]]


def test_own_processes_are_told_apart_from_clients(run_dir: Path) -> None:
    directory = RunDir(run_dir)
    directory.create()
    view = FakeView(run_dir, given=[a_role(WORKER, US, "running"), a_role(ENGINE, None, "restarting")])
    with ExitStack() as stack:
        reader, writers = stack.enter_context(page_of(run_dir, SUPERVISOR, FRONTEND))
        for name, pid in (("a", US), ("b", US + 1), ("c", US + 2)):
            stack.enter_context(LockFile(directory.client_lock(name))).write(f"{pid} {name}")
        directory.client_lock("dead").write_text(f"{US} dead")
        directory.client_lock("odd").write_text("no pid")
        writers[FRONTEND].publish(FrontendStats(clients=3))
        status = gather_status(view(), reader.read(), Readiness(True, "why"))
    assert (status.stats.clients, status.own_clients) == (3, 1)
    text = drawn(status)
    assert "clients: 2 (and 1 of its own processes);" in text
    assert re.search(r"ready, up \d+ s", text)
    overview = overview_of(look_closely(status), None)
    assert (overview.clients, overview.own_clients) == (2, 1)
    text = drawn(draw(overview))
    assert "clients: 2 (and 1 of its own processes)" in text


def test_a_modality_has_a_line_where_not_all_items_are_images(run_dir: Path) -> None:
    images = ItemsByModality(image=ItemsOfModality(queries=9, processed=9))
    both = ItemsByModality(image=images.image, video=ItemsOfModality(queries=1234, hits=34, processed=1200))
    worker = WorkerStats(by_modality=EncodedByModality(video=EncodedOfModality(encoded=5, embeds_encoded=4321)))
    for items, expected in ((images, []), (both, ["image", "video"])):
        stats = ServiceStats(
            processor=ProcessorCacheStats(by_modality=items), engines=[EngineStats(workers=[worker] * 2)]
        )
        stats = stats if items is both else msgspec.structs.replace(stats, engines=[])
        found = modalities_of(stats)
        assert [line.name for line in found] == expected
    assert (found[1].encoded, found[1].embeds_encoded) == (10, 8642)
    with page_of(run_dir, FRONTEND) as (reader, _):
        status = gather_status(FakeView(run_dir)(), reader.read(), Readiness(True, "why"))
    text = drawn(msgspec.structs.replace(status, stats=stats))
    assert {"video", "1,234", "1,200", "10", "8,642"} <= {*text.split()}
    look = look_closely(msgspec.structs.replace(status, stats=stats))
    text = drawn(draw(overview_of(look, None)))
    assert {"video", "1,234", "1,200", "10", "8,642"} <= {*text.split()}


def test_latencies_are_said_of_all_roles_together_and_not_of_what_was_never_done(run_dir: Path) -> None:
    """Two workers: half of their steps took 2 to 5 ms, half of them 50 to 100 ms."""
    others = [RoleName("worker", 0, 0), RoleName("worker", 1, 0)]
    with page_of(run_dir, FRONTEND, ENGINE, RoleName("engine", 1), *others) as (reader, writers):
        for role, seconds in zip(others, (0.004, 0.08), strict=True):
            latency = Latency()
            for _ in range(100):
                latency.add(seconds)
            writers[role].publish(WorkerStats(encode_latency=latency.histogram()))
        status = gather_status(FakeView(run_dir)(), reader.read(), Readiness(True, "why"))
    assert status.latency == {"encode": LatencyStatus(num=200, p50_s=0.005, p99_s=0.099)}
    assert msgspec.json.decode(msgspec.json.encode(status), type=ServiceStatus) == status
    text = drawn(status)
    (line,) = (line for line in text.splitlines() if "encoding of a step" in line)
    assert [word in line for word in (" 200 ", " 5 ms ", " 99 ms ")] == [True] * 3


def test_every_latency_has_a_name_for_people() -> None:
    stats = ServiceStats(engines=[EngineStats(workers=[WorkerStats()])])
    assert histograms_of(stats).keys() == WORK.keys()


def test_a_store_alone_shows_no_caches_of_engines() -> None:
    assert caches_of(ServiceStats()) == ["store"]
    assert caches_of(ServiceStats(engines=[EngineStats()])) == [
        "processor",
        "store",
        "encoder",
        "kv_prefix",
        "tensor_prefix",
    ]
