"""Health, metrics and status of a real service: ready only if the data path works. (`test_restarts`: counters.)"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mmcached.cli.admin.observe import fetch
from mmcached.cli.serve.child_service import ChildService
from mmcached.cli.serve.first_request import TINY_PNG
from mmcached.client import Client, Generation
from tests.cli.test_app import Ended
from tests.cli.test_app import mmcached as run_command
from tests.deploy.metric_uses import unknown, uses
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S, eventually, role_pids

Key = tuple[str, tuple[tuple[str, str], ...]]


def get(service: ChildService, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url_of(service.run_dir) + path, timeout=DEADLINE_S) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@cache
def url_of(run_dir: Path) -> str:
    url: str = json.loads(fetch(run_dir, "/status", DEADLINE_S))["http"]
    return url


def mmcached(service: ChildService, *arguments: str) -> Ended:
    return run_command(*arguments, "--run-dir", str(service.run_dir))


def counters(page: str) -> dict[Key, float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        if family.type == "counter"
        for sample in family.samples
    }


def page_of(service: ChildService, client_name: str) -> str:
    """Return the metrics once they have those of a client, and of a hit that saves a tenant time."""
    with Client(service.run_dir) as client:
        assert client.put("worth a second", {"x": 1}, cost_s=1.0)
        assert client.get("worth a second") is not None
    wanted = f'client="{client_name}"', "mmcached_tenant_saved_seconds_total{"
    return eventually(
        lambda: get(service, "/metrics")[1], lambda text: all(each in text for each in wanted), "the figures"
    )


def test_dashboard_and_alerts_use_what_a_service_exports(lasting_service: ChildService) -> None:
    """All but what is said of a second engine and of a second level, which are not here."""
    absent = {("role", "=", "engine 1"), ("cache", "=", "second_level")}
    page = page_of(lasting_service, "worker")
    missing = [use for use in unknown(page) if not absent.intersection(use.matchers)]
    assert [use for use in missing if not use.metric.startswith("mmcached_l2_")] == []


def test_the_page_about_metrics_names_what_a_service_exports(lasting_service: ChildService) -> None:
    """And vLLM's names: `tests/hosts/vllm/test_pages.py`."""
    named = uses([(REPOSITORY / "docs" / "metrics.md").read_text()])
    with Client(lasting_service.run_dir, name="vllm") as client:
        assert client.get("no record") is None
        page = page_of(lasting_service, "vllm")
    assert len(named) > 20
    assert unknown(page, named) == []


def test_stopped_engine_makes_it_not_ready_although_every_process_lives(lasting_service: ChildService) -> None:
    service = lasting_service
    eventually(lambda: get(service, "/readyz")[0], lambda status: status == 200, "readiness")
    assert mmcached(service, "ping").returncode == 0
    engine = role_pids(service.process.pid)["engine"][0]
    os.kill(engine, signal.SIGSTOP)
    try:
        _, reason = eventually(lambda: get(service, "/readyz?verbose=1"), lambda answer: answer[0] == 503, "readiness")
        assert get(service, "/healthz")[0] == 200
        assert "engine 0" in reason
        assert "stopped" in reason
        shown = mmcached(service, "status")
        assert shown.returncode == 1
        assert "stopped" in shown.stdout
        as_json = json.loads(mmcached(service, "status", "--json").stdout)
        assert {role["name"]: role["state"] for role in as_json["roles"]}["engine 0"] == "stopped"
        watched = mmcached(service, "top", "--once", "--interval", "0.1")
        assert watched.returncode == 1
        (words,) = (words for words in map(str.split, watched.stdout.splitlines()) if str(engine) in words)
        assert words[-1] == "stopped"
        assert mmcached(service, "ping").returncode == 1
        assert get(service, "/metrics")[0] == 200
    finally:
        os.kill(engine, signal.SIGCONT)
    eventually(lambda: get(service, "/readyz")[0], lambda status: status == 200, "readiness after SIGCONT")


@pytest.mark.parametrize("options", [[], ["--epoch"]])
def test_flush_verb_empties_every_cache(options: list[str], lasting_service: ChildService) -> None:
    service = lasting_service
    prompt = f"flush me {options}: <image>" + "x" * 40
    with Client(service.run_dir) as client:
        first = client.generate(prompt, [TINY_PNG], max_tokens=2, hidden_states=True)
        assert client.generate(prompt, [TINY_PNG], max_tokens=2, hidden_states=True).num_cached_tokens > 0
        before = client.stats()
        assert mmcached(service, "flush", *options).returncode == 0
        again = client.generate(prompt, [TINY_PNG], max_tokens=2, hidden_states=True)
        after = client.stats()
    assert again.tokens == first.tokens
    assert again.num_cached_tokens == 0
    assert after.processor.items_processed == before.processor.items_processed + 1
    workers, workers_before = after.engines[0].workers, before.engines[0].workers
    assert sum(each.items_encoded for each in workers) == sum(each.items_encoded for each in workers_before) + 1
    assert workers[0].prefix_row_queries == workers_before[0].prefix_row_queries


def test_a_new_epoch_does_not_disturb_who_is_being_served(lasting_service: ChildService) -> None:
    with Client(lasting_service.run_dir) as client:
        prompt = "go on and on, " * 4
        wanted = client.generate(prompt, max_tokens=60)
        stream = client.generate_stream(prompt, max_tokens=60)
        pieces = [next(stream)]
        client.invalidate()
        pieces += stream
        behind, at_last = (client.generate(prompt, max_tokens=1) for _ in range(2))
    last = pieces.pop()
    assert isinstance(last, Generation)
    assert [token for piece in pieces if isinstance(piece, list) for token in piece] == last.tokens == wanted.tokens
    assert behind.num_cached_tokens == 0, "what was computed in the old epoch is not found"
    assert at_last.num_cached_tokens > 0
