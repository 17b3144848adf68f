"""Processes with and without a descriptor of their own."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from mmcached.cli.serve.pidfd import has_ended, open_pidfd, terminate

SLEEP = [sys.executable, "-c", "import signal; signal.pause()"]
DEADLINE_S = 60.0


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_a_kernel_without_pidfds_is_done_without(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with subprocess.Popen(SLEEP) as process:
        assert open_pidfd(process.pid) == -1
        assert not has_ended(process.pid, -1, 0.01)
        terminate(process.pid, -1)
        assert has_ended(process.pid, -1, DEADLINE_S)


def test_a_process_that_has_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    with pytest.raises(ProcessLookupError):
        open_pidfd(process.pid)
    terminate(process.pid, -1)
