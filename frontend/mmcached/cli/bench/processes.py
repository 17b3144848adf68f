"""Runs measuring processes: each line of their input is an order, each line of their output an answer.

They print `READY` first, and end with their input.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.process.death import environment_for_children

READY = "ready\n"

Process = subprocess.Popen[str]


@contextmanager
def measuring(module: str, arguments: Sequence[str], number: int) -> Iterator[list[Process]]:
    """Run `number` processes of a module; yield them when all are ready, or raise ServiceUnavailable."""
    with ExitStack() as stack:
        started = []
        for _ in range(number):
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment_for_children(),
                process_group=0,  # Ctrl-C reaches only this process, which then closes their input
            )
            stack.enter_context(process)  # its exit closes the input, and waits
            started.append(process)
        for process in started:
            if _line(process) != READY:
                raise ServiceUnavailable("a client process has not started")
        yield started


def tell(process: Process, *order: str | float) -> None:
    """Send an order; `answer` waits until it is carried out."""
    if process.stdin is not None:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()


def answer(process: Process) -> list[float]:
    """Return the microseconds of each call of the oldest open order; ServiceUnavailable if the process has ended."""
    times: list[float] = json.loads(_line(process))
    return times


def _line(process: Process) -> str:
    line = "" if process.stdout is None else process.stdout.readline()
    if not line:
        raise ServiceUnavailable("a client process has ended; see its output above")
    return line
