"""Starts and kills the processes of `reader_child.py`; every wait has a deadline."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

DEADLINE_S = 60.0


class ChildError(Exception):
    """The child has answered with an error; the only argument is its code."""


class Process:
    """One child. Leaving the block kills it."""

    def __init__(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("reader_child.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str, *arguments: Any) -> Any:
        """Send one command and return its answer."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        line = json.dumps([command, *msgspec.to_builtins(arguments)])
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()
        ready, _, _ = select.select([self._popen.stdout], [], [], DEADLINE_S)
        assert ready, f"no answer to {command} within {DEADLINE_S} s"
        outcome, value = json.loads(self._popen.stdout.readline())
        if outcome == "error":
            raise ChildError(value)
        return value

    def kill(self) -> None:
        """`kill -9`, then wait until the kernel has taken it apart."""
        self._popen.kill()
        self._popen.wait(DEADLINE_S)

    def stop(self) -> None:
        """SIGSTOP: it lives and says nothing any more."""
        self._popen.send_signal(signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            pipe.close()


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until it holds; fail after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        select.select([], [], [], 0.002)
