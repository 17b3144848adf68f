"""info without a service, and with one in this process: sections, names and figures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from mmcached.cli.admin import info
from mmcached.cli.admin.info import Section, memory_facts, service_facts
from mmcached.cli.watch.latencies import LatencyStatus
from mmcached.cli.watch.service_status import Readiness, ServiceStatus, gather_status
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import EncoderCacheStats, EngineStats, KVCacheStats, WorkerStats
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import ClientStats, ProcessorCacheStats, ServiceStats, StoreStats
from tests.cli.fake_view import FRONTEND, FakeView, a_role

STATS = ServiceStats(
    requests_done=5,
    clients=2,
    processor=ProcessorCacheStats(queries=7),
    store=StoreStats(puts=3),
    by_client={"vllm": ClientStats(hits=4)},
    engines=[
        EngineStats(steps=1, kv=KVCacheStats(hits=10), encoder=EncoderCacheStats(hits=1)),
        EngineStats(steps=2, kv=KVCacheStats(hits=20), workers=[WorkerStats(items_encoded=9)]),
    ],
)

HIT = LatencyStatus(num=3, p50_s=0.00001, p99_s=0.5)


def call(run_dir: Path, *arguments: str) -> Result:
    app = typer.Typer()
    info.register(app)
    return CliRunner().invoke(app, [*arguments, "--run-dir", str(run_dir)])


def a_status(run_dir: Path) -> ServiceStatus:
    view = FakeView(run_dir, given=[a_role(FRONTEND, os.getpid(), "running")])()
    import msgspec

    latency = {"hit": HIT, "step": msgspec.structs.replace(HIT, num=4)}
    status = gather_status(view, {}, Readiness(True, "all\x1b[2J"))
    return msgspec.structs.replace(status, stats=STATS, latency=latency)


def test_without_a_service_there_is_a_server_section_alone(run_dir: Path) -> None:
    facts = json.loads(call(run_dir, "--json").stdout)
    assert list(facts) == ["server"]
    server = facts["server"]
    assert (server["run_dir"], server["config"], server["is_running"]) == (str(run_dir), "defaults", False)
    assert server["config_digest"] == ServiceConfig().digest()
    assert server["word_store"]
    assert server["max_image_bytes"] == ServiceConfig().max_image_bytes
    assert call(run_dir, "store").exit_code == 3
    config = ServiceConfig(world_size=3, store_l2="redis://me:hunter2@cache")
    config.save(RunDir(run_dir).config)
    lines = call(run_dir, "server").stdout.splitlines()
    assert "store_l2:redis://me:***@cache" in lines
    assert lines[0] == "# Server"
    assert {"config:saved", f"config_digest:{config.digest()}", "is_running:0"} <= set(lines)


def test_each_figure_is_a_line_of_its_section(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmcached.cli.admin.observe.look_at", lambda path: a_status(run_dir))
    sections = {
        block.splitlines()[0]: dict(line.split(":", 1) for line in block.splitlines()[1:])
        for block in call(run_dir).stdout.split("\n\n")
    }
    assert list(sections) == [f"# {section.capitalize()}" for section in Section]
    assert sections["# Server"]["frontend"] == f"pid={os.getpid()},state=running,restarts=0"
    assert sections["# Server"]["reason"] == "all\\x1b[2J"
    assert sections["# Clients"]["clients"] == "2"
    assert sections["# Clients"]["client_vllm"] == "hits=4,misses=0,puts=0"
    assert int(sections["# Memory"]["frontend_anonymous_bytes"]) > 1 << 20
    assert (sections["# Store"]["puts"], sections["# Store"]["ring_chunks"]) == ("3", "0")
    assert {"hit_rate", "records", "evictions"} <= sections["# Store"].keys()
    assert int(sections["# Server"]["uptime_s"]) >= 0
    assert sections["# Clients"]["own_clients"] == "0"
    assert sections["# Store"]["latency_hit"] == "num=3,p50_s=0.000010,p99_s=0.500000"
    assert sections["# Engines"]["latency_step"].startswith("num=4,")
    assert not any("sum_ns" in name for names in sections.values() for name in names)
    assert (sections["# Processor"]["queries"], sections["# Processor"]["stored_evictions"]) == ("7", "0")
    assert sections["# Encoder"]["hits"] == "1"
    assert sections["# Encoder"]["workers_items_encoded"] == "9"
    assert sections["# Kv"]["hits"] == "30", "of all engines"
    assert sections["# Engines"]["requests_done"] == "5"
    assert "steps=2" in sections["# Engines"]["engine_1"]
    assert "items_encoded=9" in sections["# Engines"]["worker_1.0"]
    assert call(run_dir, "kv").stdout.startswith("# Kv\nqueries:0\nhits:30\n")


def test_a_process_that_has_gone_takes_nothing(run_dir: Path) -> None:
    assert memory_facts([a_role(FRONTEND, 4_000_000, "dead")], 1) == {
        "ring_bytes": 1,
        "anonymous_bytes": 0,
    }
    assert set(service_facts(a_status(run_dir))) == set(Section) - {Section.SERVER, Section.NAMES}
