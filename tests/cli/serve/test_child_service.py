"""ChildService: the configuration of the child is the file, whatever the environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.paths import RunDir
from tests.integration.processes import small_config


def test_environment_does_not_overrule_the_file(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMC_WORLD_SIZE", "4")
    monkeypatch.setenv("MMC_NO_SUCH_THING", "1")
    config = small_config(world_size=1)
    with ChildService(run_dir / "s", config, tmp_path / "config.json") as service:
        assert ServiceConfig.load(RunDir(service.run_dir).config) == config


def test_service_that_cannot_start_is_a_typed_error(run_dir: Path, tmp_path: Path) -> None:
    config = small_config(device="cuda:63", world_size=1)
    with pytest.raises(ServiceUnavailable), ChildService(run_dir / "s", config, tmp_path / "config.json"):
        pass
    assert not list((run_dir / "s").glob("*.sock"))
