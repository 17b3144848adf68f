"""Runs the two ranks of an engine, or of an encoder server, as processes that a test tells what to do.

A process runs a module: `python -m MODULE RANK MEETING CHECKPOINT`. Each line of its input is a JSON list, the name of
a command and its arguments; each line of its output is the answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEADLINE_S = 300.0


def answer_lines(commands: object) -> None:
    """Run the commands of the input until it ends."""
    for line in sys.stdin:
        name, *values = json.loads(line)
        sys.stdout.write(json.dumps(getattr(commands, name)(*values)) + "\n")
        sys.stdout.flush()


class Ranks:
    """Two processes, which are told the same."""

    def __init__(self, module: str, checkpoint: Path, meeting: Path, run_dirs: tuple[Path, Path]) -> None:
        command = [sys.executable, "-W", "ignore", "-m", module]
        self.processes = [
            subprocess.Popen(
                [*command, str(rank), str(meeting), str(checkpoint)],
                env=os.environ | {"MMCACHED_RUN_DIR": str(run_dir), "GLOO_SOCKET_IFNAME": "lo"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for rank, run_dir in enumerate(run_dirs)
        ]

    def tell(
        self, name: str, *values: Any, ranks: tuple[int, ...] = (0, 1), meanwhile: Callable[[], object] = bool
    ) -> list[Any]:
        """Return the answers of the ranks; a process that has ended has none. Call `meanwhile` before they come."""
        for rank in ranks:
            stdin = self.processes[rank].stdin
            assert stdin is not None
            with contextlib.suppress(BrokenPipeError):
                stdin.write(json.dumps([name, *values]).encode() + b"\n")
                stdin.flush()
        meanwhile()
        return [self._answer(rank) for rank in ranks]

    def step(self, *pictures: int, meanwhile: Callable[[], object] = bool) -> tuple[str, list[int]]:
        """Return the digest of the pictures' embeddings, and what was encoded; equal in both ranks."""
        one, other = self.tell("step", *pictures, meanwhile=meanwhile)
        assert one == other
        assert one is not None, "both have ended"
        return one["sha256"], one["encoded"]

    def _answer(self, rank: int) -> Any:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], DEADLINE_S)
        assert readable, f"rank {rank} does not answer"
        line = stdout.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate(timeout=DEADLINE_S)


@contextlib.contextmanager
def ranks(module: str, checkpoint: Path, *run_dirs: Path) -> Iterator[Ranks]:
    """Run the ranks of a module; each finds the store in its run directory, or both in the only one."""
    with tempfile.TemporaryDirectory() as folder:
        both = Ranks(module, checkpoint, Path(folder) / "meeting", (run_dirs[0], run_dirs[-1]))
        try:
            yield both
        finally:
            both.close()
