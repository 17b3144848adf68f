"""The reader processes, as the writer sees them: started once, used by all sessions, ended at the end.

They are spawned with one torch thread each and import everything before the first measurement. Every wait has a
deadline, and a tensor with wrong contents ends the run: a fast wrong answer is not a figure.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq

from ring_peers.transport import CONTROL, DEADLINE_MS, READY, Options, connect

SCRIPTS = Path(__file__).resolve().parent.parent


class ReaderPool:
    """`num_readers` processes and the sockets to them."""

    def __init__(self, num_readers: int) -> None:
        self._free_sessions: deque[int] = deque(range(CONTROL))
        with contextlib.ExitStack() as undo:
            self.directory = undo.enter_context(tempfile.TemporaryDirectory(prefix="ring-"))
            context = undo.enter_context(zmq.Context())
            self._replies = undo.enter_context(context.socket(zmq.PULL))
            self._replies.set(zmq.RCVTIMEO, DEADLINE_MS)
            self._replies.bind(f"ipc://{self.directory}/writer")
            self.links = [undo.enter_context(connect(context, self.directory, index)) for index in range(num_readers)]
            command = [sys.executable, "-m", "ring_peers.reader", self.directory]
            for index in range(num_readers):
                process = subprocess.Popen([*command, str(index)], cwd=SCRIPTS)
                undo.callback(process.wait)
                undo.callback(process.kill)
            self._undo = undo.pop_all()
        try:
            self._control_all(num_readers, {"do": "hello"})
        except BaseException:
            self.close()
            raise

    def new_session(self) -> int:
        """Return a session number that nobody uses."""
        return self._free_sessions.popleft()

    def open(self, session: int, transport: str, options: Mapping[int, Options]) -> dict[int, Any]:
        """Open a session in the readers that are named; return what each end greets with."""
        call = {"do": "open", "session": session, "transport": transport}
        return self._control({index: {**call, "options": each} for index, each in options.items()})

    def watch_memory(self, num_readers: int, *, on: bool) -> list[tuple[int, int]]:
        """Switch watching on or off; return per reader what the last tensor took of the process's own memory, bytes.

        The first figure counts the tensor's own bytes, the second by how much the process has grown.
        """
        answers = self._control_all(num_readers, {"do": "watch", "on": on})
        return [(own, grown) for own, grown in answers.values()]

    def close_session(self, session: int, num_readers: int) -> None:
        self._control_all(num_readers, {"do": "close", "session": session})
        self._free_sessions.append(session)

    def next_ready(self) -> tuple[int, int, float, float]:
        """Return (reader, when in ns, first, last element) of the next tensor that some reader holds."""
        reply = self._replies.recv()
        if reply[0] == CONTROL:
            raise RuntimeError(f"a reader failed: {msgspec.msgpack.decode(reply[1:])}")
        index, _, when, first, last = READY.unpack(reply)
        return index, when, first, last

    def all_ready(self, num_readers: int, stamp: float) -> int:
        """Return when the last of the readers held the tensor that begins and ends with `stamp`."""
        latest = 0
        for _ in range(num_readers):
            index, when, first, last = self.next_ready()
            if first != stamp or last != stamp:
                raise RuntimeError(f"reader {index} read {first} … {last}, written was {stamp}")
            latest = max(latest, when)
        return latest

    def close(self) -> None:
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _control_all(self, num_readers: int, call: Options) -> dict[int, Any]:
        return self._control(dict.fromkeys(range(num_readers), call))

    def _control(self, calls: Mapping[int, Options]) -> dict[int, Any]:
        """Send each reader its call; return the answers by reader, in the order of the calls."""
        for index, call in calls.items():
            self.links[index].send(bytes([CONTROL]) + msgspec.msgpack.encode(call))
        answers: dict[int, Any] = {}
        while len(answers) < len(calls):
            reply = self._replies.recv()
            if reply[0] != CONTROL:
                raise RuntimeError("a tensor arrived that nobody waits for")
            index, answer, error = msgspec.msgpack.decode(reply[1:])
            if error is not None:
                raise RuntimeError(f"reader {index}: {error}")
            answers[index] = answer
        return {index: answers[index] for index in calls}
