"""SGLang's own loader finds the plugin, which does what the environment asks for, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sglang.srt.disaggregation.encoder import runtime, server

from mmcached.integrations.sglang import children

SHOW = """
import logging, sys
logging.basicConfig(level=logging.INFO)
from sglang.srt.plugins import load_plugins
load_plugins()
print("hosts of ours:", sorted(name for name in sys.modules if name.startswith("mmcached.integrations.sglang.")))
from sglang.srt.mem_cache.embedding_store import EmbeddingStoreFactory
try:
    print("store:", type(EmbeddingStoreFactory.create_backend("mooncake")))
except Exception as error:
    print("store:", error)
"""
SHOW_HOOKS = """
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager as Updater
from sglang.srt.mem_cache import kv_cache_builder
from sglang.srt.disaggregation.encoder import runtime
from sglang.srt.model_executor.model_runner import ModelRunner
places = [kv_cache_builder.init_mm_embedding_cache, Scheduler.flush_cache, Updater.update_weights_from_disk,
    Updater.update_weights_from_distributed, Updater.update_weights_from_tensor, Updater.update_weights_from_ipc,
    Updater.begin_weight_update, Updater.end_weight_update, Updater.release_memory_occupation,
    Updater.resume_memory_occupation, ModelRunner.load_model]
print("hooks:", sum(hasattr(place, "__wrapped__") for place in places))
print("children:", runtime.launch_encoder.__module__, runtime.launch_dp_worker.__module__)
"""


def load(code: str, **environment: str) -> str:
    """Return what a process of SGLang says that loads its plugins."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MMCACHED_")}
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout + done.stderr


def test_nothing_happens_unless_asked() -> None:
    said = load(SHOW)
    assert "Executed general plugin: mmcached" in said
    assert "hosts of ours: ['mmcached.integrations.sglang.plugin', 'mmcached.integrations.sglang.settings']" in said
    assert "install mooncake" in said.lower()


def test_what_is_asked_for_is_put_in_place() -> None:
    said = load(SHOW + SHOW_HOOKS, MMCACHED_SGLANG="engine_cache,embedding_store")
    assert "MmcachedEmbeddingStore" in said
    assert "hooks: 11" in said
    assert "children: mmcached.integrations.sglang.children mmcached.integrations.sglang.children" in said


def test_another_version_of_sglang_goes_on_without_us() -> None:
    older = "from importlib import metadata\nfound = metadata.version\n"
    older += "metadata.version = lambda name: '0.5.22' if name == 'sglang' else found(name)\n"
    said = load(older + SHOW, MMCACHED_SGLANG="embedding_store")
    assert "Failed to execute general plugin: mmcached" in said
    assert "with sglang 0.5.22': needs 0.5.23 or later, below 0.6" in said
    assert "install mooncake" in said.lower()


def test_hashes_at_random_are_refused() -> None:
    said = load(SHOW, MMCACHED_SGLANG="embedding_store", SGLANG_MM_SKIP_COMPUTE_HASH="1")
    assert "with SGLANG_MM_SKIP_COMPUTE_HASH': needs hashes" in said
    assert "install mooncake" in said.lower()


def test_processes_of_an_encoder_server_load_the_plugin_and_run_sglangs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[object] = []
    monkeypatch.setattr(server, "launch_encoder", lambda *given: ran.append(("encoder", *given)))
    monkeypatch.setattr(runtime, "launch_dp_worker", lambda *given, **named: ran.append(("worker", *given, named)))
    monkeypatch.setattr("sglang.srt.plugins.load_plugins", lambda: ran.append("plugins"))
    for target in (children.launch_encoder, children.launch_dp_worker):
        assert getattr(children, target.__qualname__) is target, "a spawned process finds its target by name"
        target(1, 2)
    assert ran == ["plugins", ("encoder", 1, 2), "plugins", ("worker", 1, 2, {})]
