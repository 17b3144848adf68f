"""What top and the web page show: totals of one look, rates of two, and what dies in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from mmcached.cli.admin.records import Reader
from mmcached.cli.watch.overview import Look, NurseriesLine, Overview, Usage, look_closely, overview_of, usage_of
from mmcached.cli.watch.service_status import Readiness, gather_status
from mmcached.cli.watch.top_frame import draw
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EncoderCacheStats, EngineStats, KVCacheStats
from mmcached.wire.figures import StatsRecord
from mmcached.wire.latency import Latency
from mmcached.wire.slow_log import SlowCall, SlowLog
from mmcached.wire.stats import FrontendStats, RingStats, RoleName, SecondLevelStats, StoreStats
from tests.cli.fake_view import ENGINE, FRONTEND, FakeView, a_role, drawn, page_of
from tests.present import present

SECOND_LEVEL = RoleName("second_level")
MIB = 1 << 20
RING = RingStats(data_bytes=8 * MIB, used_bytes=2 * MIB, pinned_bytes=MIB, chunks=3, leases=2, evictions=10)
FIRST = Latency()
SECOND = Latency()
for _ in range(100):
    FIRST.add(0.003)
    SECOND.add(0.003)
SECOND.add(3.0)
STATS: list[dict[object, StatsRecord]] = [
    {
        FRONTEND: FrontendStats(
            requests_done=5,
            store=StoreStats(queries=100, hits=50, ring=RING, put_latency=FIRST.histogram()),
            slow_log=SlowLog((SlowCall(1000, "put", 7_000_000, 12),)),
        ),
        ENGINE: EngineStats(steps=100, kv=KVCacheStats(blocks_used=1, blocks_total=4)),
    },
    {
        FRONTEND: FrontendStats(
            requests_done=9,
            store=StoreStats(
                queries=200,
                hits=130,
                ring=msgspec.structs.replace(RING, evictions=14),
                put_latency=SECOND.histogram(),
                nurseries=3,
                nursery_bytes=5 * MIB,
                nursery_puts=30,
                nursery_refusals=4,
                promotions=7,
            ),
        ),
        ENGINE: EngineStats(
            steps=140, requests_running=2, requests_waiting=1, encoder=EncoderCacheStats(queries=4, hits=1)
        ),
    },
]


@contextmanager
def looks(run_dir: Path) -> Iterator[list[Look]]:
    """Two looks at one service, two seconds apart: its frontend is this process, its engine dies in between."""
    found = []
    with page_of(run_dir, FRONTEND, ENGINE) as (reader, writers):
        for second, stats in enumerate(STATS):
            for role, each in stats.items():
                writers[role].publish(each)  # type: ignore[index]
            given = [a_role(FRONTEND, os.getpid(), "running"), a_role(ENGINE, None, "restarting", restarts=second)]
            status = gather_status(FakeView(run_dir, given=given)(), reader.read(), Readiness(True, "it works"))
            look = look_closely(status, clock=lambda second=second: 10.0 + 2 * second)  # type: ignore[misc]
            found.append(Look(look.at_s, status, {os.getpid(): Usage(1.0 + second, 5 * MIB)}))
        yield found


def lines(overview: Overview) -> dict[str, dict[str, object]]:
    """Return the lines of caches, by name, as plain values."""
    return {line.name: msgspec.to_builtins(line) for line in overview.caches}


def test_one_look_has_totals_and_nothing_of_now(run_dir: Path) -> None:
    with looks(run_dir) as (first, _):
        found = overview_of(first, None)
    assert found.interval_s is None
    assert lines(found)["store"] == {
        "name": "store", "queries": 100, "hits": 50, "rate": 0.5, "rate_now": None, "hits_per_s": None
    }  # fmt: skip
    (frontend, _) = found.roles
    assert (frontend.cpu, frontend.memory_bytes) == (None, 5 * MIB)
    (put,) = found.latencies
    assert (put.total.num, put.now) == (100, None)
    assert [call.number for call in found.slow] == [12]


def test_two_looks_have_what_happened_between(run_dir: Path) -> None:
    readers = [Reader(7, "vllm", 1), Reader(8, "idle", 0), Reader(9, "sglang", 3)]
    with looks(run_dir) as (first, second):
        found = overview_of(second, first.sample, readers)
    store = lines(found)["store"]
    assert (store["rate"], store["rate_now"], store["hits_per_s"]) == (0.65, 0.8, 40.0)
    assert lines(found)["kv_prefix"]["rate_now"] is None, "nobody asked"
    frontend, engine = found.roles
    assert frontend.cpu == pytest.approx(50.0), "one second of two"
    assert (engine.cpu, engine.memory_bytes, engine.state) == (None, None, "restarting")
    (ring,) = found.rings
    assert (ring.name, ring.used_bytes, ring.leases, ring.evictions_per_s) == ("store", 2 * MIB, 2, 2.0)
    assert found.nurseries == NurseriesLine(
        num=3,
        used_bytes=5 * MIB,
        budget_bytes=ServiceConfig().store_nursery_bytes,
        puts=30,
        puts_per_s=15.0,
        promotions=7,
        refusals=4,
    )
    (put,) = found.latencies
    assert put.total.num == 101
    assert put.now is not None
    assert (put.now.num, 2.0 < put.now.p50_s <= 5.0) == (1, True)
    (engine_line,) = found.engines
    assert (engine_line.steps_per_s, engine_line.running, engine_line.waiting) == (20.0, 2, 1)
    assert [(reader.name, reader.leases) for reader in found.readers] == [("sglang", 3), ("vllm", 1)]
    assert msgspec.json.decode(msgspec.json.encode(found), type=Overview) == found


def test_a_store_without_nurseries_has_no_line_of_them(run_dir: Path) -> None:
    with looks(run_dir) as (first, _):
        status = msgspec.structs.replace(first.status, nursery_budget_bytes=0)
        assert overview_of(Look(first.at_s, status, first.usage), None).nurseries is None


def test_a_service_that_was_started_anew_has_no_rates_below_zero(run_dir: Path) -> None:
    with looks(run_dir) as (first, second):
        found = overview_of(Look(20.0, first.status, first.usage), second.sample)
    store = lines(found)["store"]
    assert (store["rate_now"], store["hits_per_s"]) == (None, None)
    assert found.rings[0].evictions_per_s is None


def test_a_role_that_runs_and_is_not_heard_of_says_for_how_long(run_dir: Path) -> None:
    with looks(run_dir) as (first, _):
        role = msgspec.structs.replace(first.status.roles[0], heartbeat_age_s=7.1)
        status = msgspec.structs.replace(first.status, roles=[role])
        (line,) = overview_of(Look(first.at_s, status, first.usage), None).roles
    assert line.state == "silent for 7 s"
    assert line.complaint


def test_usage_is_of_a_process_that_lives(tmp_path: Path) -> None:
    ours = present(usage_of(os.getpid()))
    assert ours.memory_bytes > MIB
    assert usage_of(1, tmp_path) is None


def test_a_second_level_has_a_line_once_it_has_had_something_to_do_and_a_note_while_it_is_left_alone(
    run_dir: Path,
) -> None:
    given = [a_role(FRONTEND, os.getpid(), "running"), a_role(SECOND_LEVEL, os.getpid(), "running")]
    shown = []
    with page_of(run_dir, FRONTEND, SECOND_LEVEL) as (reader, writers):
        for stats in (SecondLevelStats(), SecondLevelStats(queries=4, gets_hit=3, circuit_open=1)):
            writers[SECOND_LEVEL].publish(stats)
            status = gather_status(FakeView(run_dir, given=given)(), reader.read(), Readiness(True, "it works"))
            overview = overview_of(look_closely(status), None)
            page = drawn(draw(overview), status, width=160)
            shown.append((lines(overview).get("second_level", {}).get("rate"), overview.note, page))
    (rate, note, text), (later_rate, later_note, later_text) = shown
    assert (rate, note, "second level (records)" in text) == (None, "", False)
    assert later_rate == 0.75
    assert later_text.count(later_note) == 2
    assert later_text.count("second level (records)") == 2
    assert later_text.count("second level ") >= 4, "and a line as a process"
