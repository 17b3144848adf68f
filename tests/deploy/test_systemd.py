"""The unit, judged by systemd without being installed: every line is understood, and little is left open."""

from __future__ import annotations

import json
import re
from pathlib import Path

from mmcached.wire.config import ServiceConfig
from tests.deploy.programs import run
from tests.house import REPOSITORY

UNIT = REPOSITORY / "deploy" / "systemd" / "mmcached@.service"
MAX_EXPOSURE = 1.2
"""Of 10, as systemd counts: what is left are the host's network, IPC files and the user that it has to run as."""


def seconds(name: str) -> int:
    """Return a time that the unit sets."""
    (value,) = re.findall(rf"^{name}=(\d+)$", UNIT.read_text(), re.MULTILINE)
    return int(value)


def test_systemd_understands_every_line(tmp_path: Path) -> None:
    """`verify` looks for the program too, so a copy starts one that is there; what it does not know it writes."""
    copy = tmp_path / "mmcached@vllm.service"
    copy.write_text(UNIT.read_text().replace("/opt/mmcached/bin/mmcached", "/bin/true"))
    assert run("systemd-analyze", "verify", "--man=no", copy) == ""


def test_little_is_left_open() -> None:
    run("systemd-analyze", "security", "--offline=true", f"--threshold={round(MAX_EXPOSURE * 10)}", UNIT)
    shown = run("systemd-analyze", "security", "--offline=true", "--json=short", UNIT)
    left = {each["name"] for each in json.loads(shown) if not each["set"] and each["exposure"] is not None}
    # It takes a home that is an empty tmpfs for none at all.
    assert {name for name in left if re.match(r"CapabilityBoundingSet|Protect|PrivateTmp", name)} == {"ProtectHome="}


def test_systemd_waits_longer_than_the_service_itself() -> None:
    config = ServiceConfig()
    assert seconds("TimeoutStartSec") > config.start_timeout_s
    assert seconds("TimeoutStopSec") > config.drain_timeout_s + 3 * 5  # TERMINATE_GRACE_S for each kind of role
    repairs_s = config.start_timeout_s + config.limits.not_ready_timeout_s + config.step_timeout_s
    assert seconds("WatchdogSec") > repairs_s


def test_what_clients_share_is_not_hidden_or_taken_away() -> None:
    text = UNIT.read_text()
    assert "RemoveIPC=no" in text
    for hides in ("PrivateMounts", "RootDirectory", "InaccessiblePaths", "TemporaryFileSystem", "DynamicUser"):
        assert hides not in text
