"""Runs the processes of the ring's benchmark, and says what both ends of a transport promise.

    writer process                                             reader process, one per reader
    WriterEnd.put ──────────────(ZeroMQ ipc)─────────────────> ReaderEnd.serve ──> tensor, first and last element read
    ReaderPool    <──────── when, and what was read ────────── ReaderProcess

    writer → reader    session (1 byte), then what the transport says
    reader → writer    reader, session, when (CLOCK_MONOTONIC, ns), first and last element of the tensor
    session 255        control: MessagePack in both directions

Knows no transport: a reader imports its end of one by name. Several sessions are open at a time, so that rounds of one
transport lie between those of others. Readers are spawned with one torch thread each, open their ends before the first
measurement, and say on demand what a tensor takes of their own memory. Every wait has a deadline, and a tensor with
wrong contents ends the run: a fast wrong answer is not a figure.
"""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import msgspec
import torch
import zmq

from mmcached.wire.closeable import Closeable
from scripts.bench.harness import anonymous_bytes, private_bytes

CONTROL = 255
READY = struct.Struct("<BBQff")
DEADLINE_MS = 60_000
"""The longest wait; then the measurement ends with an error."""
PARENT_CHECK_MS = 5_000
CHECKOUT = Path(__file__).resolve().parents[2]

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of one session.

    Attributes:
        item_bytes: of the tensor, float32.
        ring_bytes: room that a store may take.
    """

    item_bytes: int
    ring_bytes: int
    num_readers: int

    @property
    def lap(self) -> int:
        """How many items fill the ring, and one more."""
        return self.ring_bytes // self.item_bytes + 1


class WriterEnd:
    """The writer's half of one session. What keeps nothing under a key leaves `hit` and `holds` as they are.

    Args:
        num_processes: of readers with an end of this session; `close` closes these.
    Attributes:
        num_told: readers that a message goes to, the first ones.
    """

    name: ClassVar[str]

    def __init__(self, pool: ReaderPool, num_processes: int) -> None:
        self.pool = pool
        self.num_processes = self.num_told = num_processes
        self.session = pool.new_session()
        self._header = bytes([self.session])

    def open_readers(self, end: type[ReaderEnd], options: Options) -> dict[int, Any]:
        """Open the same end in all readers; return what each greets with."""
        return self.pool.open(self.session, end, dict.fromkeys(range(self.num_processes), options))

    def send(self, message: bytes) -> None:
        """Tell the readers."""
        framed = self._header + message
        for link in self.pool.links[: self.num_told]:
            link.send(framed)

    def begin(self, num_puts: int) -> None:
        """Announce that `num_puts` puts or hits follow."""

    def put(self, key: int, item: torch.Tensor) -> None:
        """Make a `(n,)` float32 tensor readable under a new key and tell every reader."""
        raise NotImplementedError

    def hit(self, key: int) -> None:
        """Tell every reader where an item is that it holds, without its bytes."""
        raise NotImplementedError(f"{self.name} keeps nothing under a key")

    def holds(self, key: int) -> bool:
        """Return whether the item can be hit: it has not been evicted."""
        return False

    def close(self) -> None:
        self.pool.close_session(self.session, self.num_processes)


class ReaderEnd:
    """The reader's half of one session.

    Attributes:
        greeting: what the writer is told when the end has been opened, as MessagePack can say it.
    """

    greeting: object = None

    def __init__(self, options: Options, link: Link) -> None:
        """Open it with what the writer says; what fails is told to the writer."""

    def serve(self, message: bytes, link: Link) -> Iterator[torch.Tensor]:
        """Yield the tensors that a message brings; when resumed, the tensor is no longer in use."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything."""


@dataclass(frozen=True, slots=True)
class Link:
    """A reader process's sockets.

    Attributes:
        index: which reader it is.
        inbox: where messages of all sessions arrive.
    """

    index: int
    inbox: zmq.Socket[bytes]
    outbox: zmq.Socket[bytes]
    context: zmq.Context[zmq.Socket[bytes]]
    directory: str

    def connect(self, index: int) -> zmq.Socket[bytes]:
        """Return a socket to another reader's inbox; the caller closes it."""
        return connect(self.context, self.directory, index)


def connect(context: zmq.Context[zmq.Socket[bytes]], directory: str, index: int) -> zmq.Socket[bytes]:
    """Return a PUSH socket to the inbox of reader `index`."""
    socket = context.socket(zmq.PUSH)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDTIMEO, DEADLINE_MS)
    socket.connect(f"ipc://{directory}/reader{index}")
    return socket


class ReaderPool(Closeable):
    """`num_readers` processes and the sockets to them: started once, used by all sessions, ended at the end."""

    def __init__(self, num_readers: int) -> None:
        self._free_sessions: deque[int] = deque(range(CONTROL))
        with contextlib.ExitStack() as undo:
            self.directory = undo.enter_context(tempfile.TemporaryDirectory(prefix="ring-"))
            context = undo.enter_context(zmq.Context())
            self._replies = undo.enter_context(context.socket(zmq.PULL))
            self._replies.set(zmq.RCVTIMEO, DEADLINE_MS)
            self._replies.bind(f"ipc://{self.directory}/writer")
            self.links = [undo.enter_context(connect(context, self.directory, index)) for index in range(num_readers)]
            serves = f"from {__name__} import serve; serve({self.directory!r}, %d)"
            for index in range(num_readers):
                process = subprocess.Popen([sys.executable, "-c", serves % index], cwd=CHECKOUT)
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

    def open(self, session: int, end: type[ReaderEnd], options: Mapping[int, Options]) -> dict[int, Any]:
        """Open a session in the readers that are named; return what each end greets with."""
        call = {"do": "open", "session": session, "end": f"{end.__module__}:{end.__qualname__}"}
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


def serve(directory: str, index: int) -> None:
    """Be one reader: blocks for messages, and ends with the parent."""
    torch.set_num_threads(1)
    parent = os.getppid()
    with zmq.Context() as context, context.socket(zmq.PULL) as inbox, context.socket(zmq.PUSH) as outbox:
        inbox.set(zmq.RCVTIMEO, PARENT_CHECK_MS)
        inbox.bind(f"ipc://{directory}/reader{index}")
        outbox.set(zmq.LINGER, 0)
        outbox.connect(f"ipc://{directory}/writer")
        process = ReaderProcess(Link(index, inbox, outbox, context, directory))
        while os.getppid() == parent:
            try:
                message = inbox.recv()
            except zmq.Again:
                continue
            process.handle(message)


class ReaderProcess:
    """The sessions of one process."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ends: dict[int, ReaderEnd] = {}
        self._watches_memory = False
        self._memory = (0, 0)

    def handle(self, message: bytes) -> None:
        """Do what one message asks; failures are told to the writer, which ends the run."""
        session = message[0]
        try:
            if session == CONTROL:
                self._answer(self._control(msgspec.msgpack.decode(message[1:])), None)
            else:
                self._serve(session, message)
        except Exception:
            self._answer(None, traceback.format_exc())

    def _serve(self, session: int, message: bytes) -> None:
        link = self._link
        if self._watches_memory:
            self._serve_watched(session, message)
            return
        for tensor in self._ends[session].serve(message, link):
            first, last = tensor[0].item(), tensor[-1].item()
            link.outbox.send(READY.pack(link.index, session, time.monotonic_ns(), first, last))
            del tensor

    def _serve_watched(self, session: int, message: bytes) -> None:
        """As `_serve`, but note what each tensor takes of this process's own memory; not for timing."""
        before = anonymous_bytes()
        for tensor in self._ends[session].serve(message, self._link):
            first, last = tensor[0].item(), tensor[-1].item()
            grown = anonymous_bytes() - before
            self._memory = (private_bytes(tensor.data_ptr(), tensor.nbytes), grown)
            self._link.outbox.send(READY.pack(self._link.index, session, time.monotonic_ns(), first, last))
            del tensor

    def _control(self, call: dict[str, Any]) -> object:
        if call["do"] == "hello":
            return os.getpid()
        if call["do"] == "watch":
            self._watches_memory = call["on"]
            return self._memory
        if call["do"] == "close":
            self._ends.pop(call["session"]).close()
            return None
        opened = resolve_name(call["end"])(call["options"], self._link)
        self._ends[call["session"]] = opened
        return opened.greeting

    def _answer(self, answer: object, error: str | None) -> None:
        self._link.outbox.send(bytes([CONTROL]) + msgspec.msgpack.encode((self._link.index, answer, error)))
