"""Starts and kills child processes that answer one JSON command per line; every wait has a deadline."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mmcached.shm import RingWriter
from mmcached.wire.closeable import Closeable

DEADLINE_S = 60.0
_ROOT = Path(__file__).parents[2]


class Died(Exception):
    """The child has ended instead of answering."""


class ChildError(Exception):
    """The child has answered with an error; the only argument is its code."""


class Child(Closeable):
    """One child process of a module. Leaving the block kills it.

    Args:
        process_group: as `Popen` takes it; 0 makes the child the leader of a new one.
    """

    def __init__(
        self, module: str, *arguments: str, environment: dict[str, str] | None = None, process_group: int | None = None
    ) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=_ROOT,
            env=os.environ | (environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=process_group,
        )
        self.pid = self._popen.pid

    def ask(self, command: str, *arguments: Any) -> Any:
        """Send one command and return its answer.

        Raises:
            Died: there is none.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(msgspec.json.encode([command, *arguments]) + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError:
            raise Died(command) from None
        ready, _, _ = select.select([self._popen.stdout], [], [], DEADLINE_S)
        assert ready, f"no answer to {command} within {DEADLINE_S} s"
        line = self._popen.stdout.readline()
        if not line:
            raise Died(command)
        return json.loads(line)

    def kill(self) -> None:
        """`kill -9`, then wait until the kernel has taken it apart."""
        self._popen.kill()
        self.exit_code()

    def stop(self) -> None:
        """SIGSTOP: it lives and says nothing any more."""
        self._popen.send_signal(signal.SIGSTOP)

    def exit_code(self) -> int:
        return self._popen.wait(DEADLINE_S)

    def close(self) -> None:
        self.kill()
        for pipe in (self._popen.stdin, self._popen.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Process(Child):
    """A `reader_child`: a reader or a writer, whose errors come as answers."""

    def __init__(self) -> None:
        super().__init__("tests.shm.reader_child")

    def ask(self, command: str, *arguments: Any) -> Any:
        """Send one command and return its answer.

        Raises:
            ChildError: the answer is an error.
        """
        outcome, value = super().ask(command, *arguments)
        if outcome == "error":
            raise ChildError(value)
        return value


def attach(ring: RingWriter, process: Process) -> tuple[int, int]:
    """Let a child take an entry of a ring and map it; return the entry and its incarnation."""
    reader_id, incarnation = process.ask("attach", ring.announcement)
    assert ring.readers.attach(reader_id, incarnation)
    process.ask("open", ring.announcement)
    return reader_id, incarnation


def digest(value: int, nbytes: int) -> str:
    """Return what a child answers to "digests" for a view whose bytes all have one value."""
    return hashlib.sha256(bytes([value]) * nbytes).hexdigest()


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until it holds; fail after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        select.select([], [], [], 0.002)
