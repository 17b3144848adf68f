"""ChildService: the configuration of the child is the file, whatever the environment says, and its end is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.paths import RunDir
from tests.integration.processes import eventually, small_config


def test_environment_does_not_overrule_the_file(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMC_WORLD_SIZE", "4")
    monkeypatch.setenv("MMC_NO_SUCH_THING", "1")
    config = small_config(world_size=1)
    service = ChildService(run_dir / "s", config, tmp_path / "config.json")
    try:
        saved = RunDir(service.run_dir).config
        eventually(lambda: saved.exists() and saved.stat().st_size > 0, bool, "the configuration of the roles")
        assert ServiceConfig.load(saved) == config
    finally:
        assert service.stop() == 0


def test_a_service_that_cannot_start_is_a_typed_error_and_the_reason_is_its_last_line(
    run_dir: Path, tmp_path: Path
) -> None:
    config = small_config(device="cuda:63", world_size=1, max_restarts=0)
    service = ChildService(run_dir / "s", config, tmp_path / "config.json", log_file=tmp_path / "log")
    with (
        pytest.raises(ServiceUnavailable, match=r"ended with status 1: mmcached: service_unavailable: worker 0\.0"),
        service,
    ):
        pass
    assert service.process.returncode == 1
    log = (tmp_path / "log").read_text()
    assert "this process sees" in log
    assert log.splitlines()[-1].startswith("mmcached: service_unavailable: worker 0.0 ended with status 1")
    assert not list((run_dir / "s").glob("*.sock"))
