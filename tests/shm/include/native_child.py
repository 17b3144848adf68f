"""A process that reads the store in C; see `reader.c` for its commands."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.shm.processes import DEADLINE_S

OK, MISSING, DETACHED, DAMAGED, UNREADABLE, OTHER_VERSION, NO_SERVICE = 1, 0, -1, -2, -3, -5, -8


class Found(NamedTuple):
    """A record under a lease: the lease's number, and the record's place and crc32."""

    lease: int
    slot: int
    offset: int
    nbytes: int
    nursery: int
    crc: int


class NativeReader:
    """Enter to start; leaving ends it in order.

    Attributes:
        attached: The outcome of its start.
    """

    def __init__(self, program: Path, run_dir: Path) -> None:
        self._popen = subprocess.Popen(
            [str(program), str(run_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._rest = b""
        self.attached = self.answer().get("outcome")

    def __enter__(self) -> NativeReader:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._popen.stdout is not None
        self.close_input()
        try:
            status = self._popen.wait(DEADLINE_S)
        finally:
            self._popen.kill()
            self._popen.wait()
            self._popen.stdout.close()
        assert error[0] is not None or status in (0, -signal.SIGKILL), f"it ended with status {status}"

    def ask(self, *command: object) -> dict[str, int]:
        """Send a command and return its answer."""
        self.send(" ".join(map(str, command)).encode() + b"\n")
        return self.answer()

    def get(self, key: str) -> Found | int:
        """Look a key up; return the record under a lease, or the outcome without one."""
        found = self.ask("get", key)
        outcome = found.pop("outcome")
        return Found(**found) if outcome == OK else outcome

    def hold(self, token: str) -> Found | int:
        """Take a lease of the record of a token of this ring; return as `get`."""
        found = self.ask("hold", *token.split(".")[2:])
        outcome = found.pop("outcome")
        return Found(**found) if outcome == OK else outcome

    def found(self, key: str) -> Found:
        found = self.get(key)
        assert isinstance(found, Found), found
        return found

    def data_path(self) -> Path:
        """Return the path of the data object of its ring."""
        self.send(b"ring\n")
        return Path(self.line())

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait(DEADLINE_S)

    def close_input(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def send(self, text: bytes) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(text)

    def line(self) -> str:
        """Return the next line of output."""
        assert self._popen.stdout is not None
        while b"\n" not in self._rest:
            assert select.select([self._popen.stdout], [], [], DEADLINE_S)[0], "it says nothing"
            more = os.read(self._popen.stdout.fileno(), 1 << 12)
            assert more, f"it has ended with status {self._popen.wait(DEADLINE_S)}"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def answer(self) -> dict[str, int]:
        """Return the names and numbers of the next line."""
        words = self.line().split()
        assert not words[0].startswith("torn"), " ".join(words)
        return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}
