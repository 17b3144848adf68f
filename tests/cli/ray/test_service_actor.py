"""Where a service of a Ray cluster lies. With doubles of Ray and of the service."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmcached.cli.ray import service_actor
from mmcached.cli.ray.service_actor import ServiceActor
from mmcached.wire.config import ServiceConfig

NODE = "0123456789abcdef" * 3 + "01234567"


def test_the_run_directory_has_the_id_that_status_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_node_id=lambda: NODE, gcs_address="10.0.0.1:6379")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    is_over = threading.Event()

    def stop() -> int:
        is_over.set()
        return 0

    def started(config: ServiceConfig, run_dir: Path) -> SimpleNamespace:
        process = SimpleNamespace(wait=is_over.wait)
        return SimpleNamespace(run_dir=run_dir, process=process, stop=stop)

    monkeypatch.setattr(service_actor, "_started", started)
    actor = ServiceActor({"encoder": {}}, f"{tmp_path}/{{node}}")
    assert actor.describe() == {"node": NODE, "run_dir": f"{tmp_path}/{NODE}"}
    assert actor.stop() == 0
