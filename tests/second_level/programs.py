"""Runs a real program for a test, which stops and kills it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mmcached.wire.closeable import Closeable


class Program(Closeable):
    """One process of a command; a subclass begins it, and says when it answers. Closing it kills it."""

    def __init__(self, command: Sequence[str], *, folder: Path | None = None) -> None:
        self._command = command
        self._folder = folder
        self.start()

    def start(self) -> None:
        """Start it, again after it was killed."""
        self._process = subprocess.Popen(
            self._command, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Have it do nothing, from now on and until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.kill()
