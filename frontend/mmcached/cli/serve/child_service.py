"""Runs a whole service as a child process, as users do: a command, a ready line, SIGTERM."""

from __future__ import annotations

import contextlib
import selectors
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from mmcached.cli.config.fields import is_setting_variable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.process.death import environment_for_children

STOP_TIMEOUT_S = 60.0

_SERVE = (sys.executable, "-m", "mmcached", "serve", "--quiet")


class ChildService:
    """One `mmcached serve` process: entering starts it and waits until it is ready; leaving ends it with SIGTERM.

    It dies with this process. Make it in the main thread.

    Args:
        run_dir: Run directory of the service; need not exist.
        config_file: Path for its configuration; the directory must exist.
        log_file: File for its log; this process's stderr by default.

    Raises:
        ServiceUnavailable: (on entering) It did not become ready.
    """

    def __init__(
        self, run_dir: Path, config: ServiceConfig, config_file: Path, *, log_file: Path | None = None
    ) -> None:
        self.run_dir = run_dir
        self._start_timeout_s = config.start_timeout_s
        self._log_file = log_file
        config.save(config_file)
        with contextlib.ExitStack() as stack:
            self.process = subprocess.Popen(
                [*_SERVE, "--run-dir", str(run_dir), "--config", str(config_file)],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if log_file is None else stack.enter_context(log_file.open("wb")),
                process_group=0,
            )

    def wait_until_ready(self) -> None:
        """Wait for the service's ready line."""
        output = self.process.stdout
        if output is None:
            raise ServiceUnavailable("the service has no output to read")
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            if not selector.select(self._start_timeout_s):
                raise ServiceUnavailable(f"the service was not ready within {self._start_timeout_s} s")
        line = output.readline()
        if not line.startswith(b"mmcached ready"):
            raise ServiceUnavailable(f"the service did not start: {self._last_words(line)}")

    def _last_words(self, line: bytes) -> str:
        """Return the line that the service printed instead of the ready line, or the last line of its log."""
        if line:
            return f"it printed {line!r}"
        ended = f"it ended with status {self.stop()}"
        if self._log_file is None:
            return f"{ended}; see its stderr above"
        said = self._log_file.read_text(errors="replace").splitlines()
        return f"{ended}: {said[-1]}" if said else ended

    def stop(self) -> int:
        """End the service in order, or kill it after `STOP_TIMEOUT_S`; return its exit status. May be called again."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _environment() -> dict[str, str]:
    """Return the environment without settings: the service's configuration is only the file."""
    return {name: value for name, value in environment_for_children().items() if not is_setting_variable(name)}
