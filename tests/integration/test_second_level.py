"""A service with a second level that nobody serves: it is ready without, whoever dies; no process says the password."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mmcached.cli.admin.observe import look_at
from mmcached.cli.serve.child_service import ChildService
from mmcached.cli.watch.service_status import RoleStatus, ServiceStatus
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from tests.integration.processes import descendants, eventually
from tests.present import present

NOBODY = "redis://user:hunter2@127.0.0.1:1"


def test_the_second_level_is_a_role_that_the_service_does_without(run_dir: Path, tmp_path: Path) -> None:
    config = ServiceConfig(world_size=0, store_gb=1 / 64, store_l2=NOBODY, log_level="debug")
    log = tmp_path / "log"
    with ChildService(run_dir, config, tmp_path / "config.json", log_file=log) as service, Client(run_dir) as client:

        def role() -> RoleStatus:
            (found,) = [each for each in status().roles if each.name == "second level"]
            return found

        def status() -> ServiceStatus:
            return present(look_at(run_dir))

        first = eventually(role, lambda role: role.state == "running" and role.heartbeat_age_s is not None, "the role")
        assert client.get_or_compute("k", lambda: {"x": 1})["x"] == 1
        assert client.get("missing") is None
        eventually(lambda: status().stats.second_level.puts_failed, bool, "a save that nobody took")
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        second = eventually(role, lambda role: role.pid not in (None, first.pid), "the next one")
        assert (second.restarts, status().ready) == (1, True)
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(service.process.pid)]
        assert any(b"second-level" in command for command in commands)
        assert not any(b"hunter2" in command for command in commands)
    assert service.process.returncode == 0
    assert "second level" in log.read_text()
    assert "hunter2" not in log.read_text()
