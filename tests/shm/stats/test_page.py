"""The stats page: what is published is read, nothing goes backwards, and each slot has one writer."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.shm.stats import layout as stats_layout
from mmcached.shm.stats.layout import ALL_ROLES, FIELDS, PAGE_BYTES, names_digest, slot_of
from mmcached.shm.stats.page import RoleSnapshot, StatsPage, StatsPageReader, StatsPageWriter
from mmcached.wire.engine_stats import EngineStats, KVCacheStats, WorkerStats
from mmcached.wire.errors import InvalidRequest, InvariantError, LayoutMismatch, SegmentError
from mmcached.wire.figures import StatsRecord
from mmcached.wire.figures import figures as figures_of_record
from mmcached.wire.latency import Histogram, Latency
from mmcached.wire.stats import FrontendStats, ItemStats, RoleName, ServiceStats, StoreStats, SupervisorStats
from tests.shm import stats_child
from tests.shm.processes import DEADLINE_S, wait_until

FRONTEND = RoleName("frontend")
ENGINE = RoleName("engine", 2)
WORKER = RoleName("worker", 3, 15)
SECOND = 1_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "stats.page"
    StatsPage.create(path)
    return path


def snapshot(path: Path, role: RoleName) -> RoleSnapshot:
    with StatsPageReader(path) as reader:
        return reader.read()[role]


def publish_once(path: Path, role: RoleName, stats: StatsRecord) -> None:
    with StatsPageWriter(path, role) as writer:
        writer.publish(stats)


@pytest.mark.parametrize(
    ("role", "stats"),
    [
        (RoleName("supervisor"), SupervisorStats(restarts=3, draining=1)),
        (
            FRONTEND,
            FrontendStats(requests_done=1 << 40, items=ItemStats(puts=9)),
        ),
        (ENGINE, EngineStats(steps=2, kv=KVCacheStats(queries=5, blocks_used=6))),
        (WORKER, WorkerStats(items_encoded=1, prefix_bytes=1 << 41)),
    ],
)
def test_what_is_published_is_read(path: Path, role: RoleName, stats: StatsRecord) -> None:
    with StatsPageReader(path) as reader:
        assert reader.read() == {}, "nobody has attached yet"
        with StatsPageWriter(path, role) as writer:
            writer.publish(stats)
            found = reader.read()
        assert list(found) == [role]
        assert found[role].stats == stats
        assert found[role].pid == os.getpid()
        assert found[role].num_attached == 1


def test_records_with_others_inside_are_taken_without_them(path: Path) -> None:
    with StatsPageWriter(path, ENGINE) as engine, StatsPageWriter(path, FRONTEND) as frontend:
        engine.publish(EngineStats(steps=1, workers=[WorkerStats(items_encoded=1)]))
        frontend.publish(ServiceStats(requests_done=1, engines=[EngineStats(steps=9)]))
        assert snapshot(path, ENGINE).stats == EngineStats(steps=1)
        assert snapshot(path, FRONTEND).stats == FrontendStats(requests_done=1)


def test_each_role_writes_its_own_slot_only(path: Path) -> None:
    """Every slot at once, each with another number: what is read says that no two overlap."""
    assert [slot_of(role) for role in ALL_ROLES] == list(range(len(ALL_ROLES)))
    writers = {role: StatsPageWriter(path, role) for role in ALL_ROLES}
    records = {
        role: FIELDS[role.kind].build([1000 * slot + 1] * len(FIELDS[role.kind].names))
        for slot, role in enumerate(ALL_ROLES)
    }
    for role, writer in writers.items():
        writer.publish(records[role])
    with StatsPageReader(path) as reader:
        assert {role: found.stats for role, found in reader.read().items()} == records
    for writer in writers.values():
        writer.close()


@pytest.mark.parametrize("role", [RoleName("engine", 8), RoleName("worker", 0, 16), RoleName("frontend", 1)])
def test_a_role_without_slot_is_refused(path: Path, role: RoleName) -> None:
    with pytest.raises(InvalidRequest) as caught:
        StatsPageWriter(path, role)
    assert caught.value.details["value"] == str(role)


# ---- counters and gauges over a role's death


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5), min_size=1, max_size=4))
def test_counters_go_on_where_the_last_incarnation_stopped(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[tuple[int, int]]]
) -> None:
    """A model: each life counts from 0; the page shows the sum of all lives, and the gauge of the last."""
    path = tmp_path_factory.mktemp("page") / "stats.page"
    with StatsPage.create(path), StatsPageReader(path) as reader:
        total = 0
        for life in lives:
            steps = gauge = 0
            with StatsPageWriter(path, ENGINE) as writer:
                assert reader.read()[ENGINE].stats == EngineStats(steps=total), "a new life begins with gauges at 0"
                for more, gauge in life:
                    steps += more
                    writer.publish(EngineStats(steps=steps, leases_held=gauge))
                    assert reader.read()[ENGINE].stats == EngineStats(steps=total + steps, leases_held=gauge)
            total += steps
        assert reader.read()[ENGINE].num_attached == len(lives)


def test_a_histogram_goes_on_over_a_death_bucket_by_bucket(path: Path) -> None:
    latencies = [Latency(), Latency()]
    for life, latency in enumerate(latencies):
        latency.add(0.001)
        latency.add(10.0**life)
        publish_once(path, FRONTEND, FrontendStats(store=StoreStats(put_latency=latency.histogram())))
    found = snapshot(path, FRONTEND).stats
    assert isinstance(found, FrontendStats)
    assert found.store.put_latency == latencies[0].histogram() + latencies[1].histogram()
    assert found.store.hit_latency == Histogram()


@contextmanager
def counting_child(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A role that publishes without pause, in the middle of it; killed at the end."""
    command = [sys.executable, str(Path(stats_child.__file__)), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            ready, _, _ = select.select([child.stdout], [], [], DEADLINE_S)
            assert ready
            assert child.stdout.readline() == "attached\n"
            yield child
        finally:
            child.kill()
            child.wait(DEADLINE_S)


def figures(stats: StatsRecord) -> dict[str, int]:
    fields = FIELDS["engine"]
    values = zip(fields.names, fields.values(stats), fields.is_gauge, strict=True)
    return {name: value for name, value, is_gauge in values if not is_gauge}


def test_kill_9_in_mid_publish_takes_no_counter_back(path: Path) -> None:
    role = RoleName("engine")
    last: dict[str, int] = dict.fromkeys(figures(EngineStats()), 0)
    with StatsPageReader(path) as reader:

        def look() -> RoleSnapshot:
            nonlocal last
            found = reader.read()[role]
            now = figures(found.stats)
            assert all(now[name] >= last[name] for name in now), (last, now)
            last = now
            return found

        for life in range(1, 7):
            with counting_child(path) as child:
                begun = look().stats
                assert isinstance(begun, EngineStats)
                target = begun.steps + random.Random(life).randint(1, 400)
                wait_until(lambda target=target: figures(look().stats)["steps"] >= target)  # type: ignore[misc]
                assert look().is_attached
                child.send_signal(signal.SIGKILL)
                child.wait(DEADLINE_S)
                after = look()
            assert not after.is_attached, "the kernel says so at once"
            assert after.pid == child.pid
            assert after.num_attached == life
            # What the last store had not reached is at most one turn of its loop behind.
            assert last["kv.queries"] - 2 * last["steps"] in range(-2 * life, 2 * life + 1)
        assert last["steps"] > 0


# ---- who may write, who lives


def test_a_second_writer_is_refused_while_the_first_lives(path: Path) -> None:
    with StatsPageWriter(path, ENGINE) as first:
        first.publish(EngineStats(steps=1))
        with pytest.raises(SegmentError, match="engine 2"):
            StatsPageWriter(path, ENGINE)
        with StatsPageWriter(path, RoleName("engine", 1)):
            pass
        assert snapshot(path, ENGINE).stats == EngineStats(steps=1), "the refused one has changed nothing"
        assert snapshot(path, ENGINE).is_attached
    assert not snapshot(path, ENGINE).is_attached
    publish_once(path, ENGINE, EngineStats(steps=1))
    assert snapshot(path, ENGINE).stats == EngineStats(steps=2)


def test_heartbeats_have_an_age(path: Path) -> None:
    now = 50 * SECOND
    writer = StatsPageWriter(path, ENGINE, clock=lambda: now)
    reader = StatsPageReader(path, clock=lambda: now)
    now += 3 * SECOND
    assert reader.read()[ENGINE].heartbeat_age_s == 3.0
    writer.beat()
    assert reader.read()[ENGINE].heartbeat_age_s == 0.0
    now += SECOND
    assert (reader.read()[ENGINE].heartbeat_age_s, reader.read()[ENGINE].attached_s) == (1.0, 4.0)
    writer.publish(EngineStats())
    assert reader.read()[ENGINE].heartbeat_age_s == 0.0, "publishing the same figures is a sign of life"
    writer.close()
    reader.close()


# ---- the file


def test_a_new_page_replaces_the_old_one_and_starts_at_zero(path: Path) -> None:
    publish_once(path, ENGINE, EngineStats(steps=5))
    with StatsPageReader(path) as old:
        page = StatsPage.create(path)
        assert old.read()[ENGINE].stats == EngineStats(steps=5), "who maps the old page keeps it"
        with StatsPageReader(path) as new:
            assert new.read() == {}
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size == PAGE_BYTES
    page.close()
    page.close()
    assert list(path.parent.iterdir()) == []


def test_without_room_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SegmentError, match="No space left"):
        StatsPage.create(tmp_path / "stats.page")
    assert list(tmp_path.iterdir()) == []


def test_without_a_page_the_error_says_so(tmp_path: Path) -> None:
    for attach in (StatsPageReader, lambda path: StatsPageWriter(path, ENGINE)):
        with pytest.raises(SegmentError, match="No such file"):
            attach(tmp_path / "stats.page")


@pytest.mark.parametrize(
    ("offset", "field"), [(0, "magic"), (8, "layout_version"), (12, "num_slots"), (20, "names_digest")]
)
def test_another_layout_is_refused(path: Path, offset: int, field: str) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)
    for attach in (StatsPageReader, lambda path: StatsPageWriter(path, ENGINE)):
        with pytest.raises(LayoutMismatch) as caught:
            attach(path)
        assert caught.value.details["field"] == field


@pytest.mark.parametrize("size", [0, 10, PAGE_BYTES - 1, PAGE_BYTES + 1])
def test_another_size_is_refused(path: Path, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(LayoutMismatch, match="file_bytes"):
        StatsPageReader(path)


def test_the_digest_covers_names_kinds_and_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapped(StatsRecord, frozen=True):
        draining: int = 0
        restarts: int = 0

    class Counted(StatsRecord, frozen=True):
        restarts: int = 0
        draining: int = 0  # a counter here

    before = names_digest()
    found = {before}
    for record in (Swapped, Counted):
        monkeypatch.setitem(stats_layout.FIELDS, "supervisor", stats_layout.Fields(record))
        found.add(names_digest())
    assert len(found) == 3


def test_a_figure_that_is_no_whole_number_is_refused() -> None:
    class WithText(msgspec.Struct, frozen=True):
        name: str = ""

    with pytest.raises(InvariantError, match=r"WithText\.name"):
        figures_of_record(WithText)
