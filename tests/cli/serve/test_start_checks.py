"""A host on which no service can work: `serve` says so at once, with what `doctor` says of it, and starts nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mmcached.cli.doctor.finding import CheckedHost
from mmcached.cli.doctor.start_checks import require_startable
from mmcached.shm.files import locks
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import SegmentError
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S

SERVE = "sys.argv = ['mmcached', 'serve', '--workers', '0', '--run-dir', *sys.argv[1:]]; main()"
FEW_DESCRIPTORS = f"""
import resource, sys
from mmcached.cli import main
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
{SERVE}
"""
READ_ONLY_SHM = f"""
import sys
from mmcached.cli import main
from tests.house.isolation import private_shm
try:
    private_shm(is_read_only=True)
except OSError as error:
    sys.exit(f"skip: {{error}}")
{SERVE}
"""


def served(program: str, run_dir: Path) -> list[str]:
    """Return the lines that a start ends with, on stderr; its status must be 1, and its deadline is not waited for."""
    command = [sys.executable, "-c", program, str(run_dir / "s"), "--start-timeout-s", str(2 * DEADLINE_S)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    lines = ended.stderr.splitlines()
    if lines[-1].startswith("skip: "):
        pytest.skip(lines[-1])
    assert (ended.returncode, ended.stdout) == (1, ""), ended.stderr
    assert not list((run_dir / "s").glob("*.sock"))
    return lines


def test_too_few_descriptors(run_dir: Path) -> None:
    """The frontend would refuse every connection, also those that ask whether it is ready."""
    (line,) = served(FEW_DESCRIPTORS, run_dir)
    assert line.startswith("mmcached: service_unavailable: open files: 64 ")
    assert "; fix: ulimit -Hn " in line


def test_a_read_only_dev_shm(run_dir: Path) -> None:
    (line,) = served(READ_ONLY_SHM, run_dir)
    assert line.startswith("mmcached: segment_error: /dev/shm is read-only: ")
    assert "; fix: mount -o remount,rw /dev/shm" in line


def test_a_warning_keeps_nobody_from_it(run_dir: Path) -> None:
    require_startable(CheckedHost(run_dir, ServiceConfig(store_gb=1024.0)))


def test_locks_that_do_not_work(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "try_exclusive", lambda fd, byte: True)
    with pytest.raises(SegmentError, match=r"kernel locks: .* locked twice; fix: "):
        require_startable(CheckedHost(run_dir))


def test_what_cannot_be_looked_at_is_a_problem(run_dir: Path) -> None:
    with pytest.raises(SegmentError, match=r"/dev/shm: .*No such file"):
        require_startable(CheckedHost(run_dir, shm=run_dir / "none"))
