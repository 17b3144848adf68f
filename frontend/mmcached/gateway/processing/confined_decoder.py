"""Runs a decoder process for the frontend; it takes one file at a time, and any file may end it.

    start ──> write the file to shared memory ──> tell, receive, tell, … ──> read the result from shared memory
                                                          │
                                                          └── the process has died: DecoderDiedError; start another

The file and the result travel in memory that both processes map (two memfds), never through a pipe. Messages of the
process are checked. The process dies with the thread that started it, hence with the frontend.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec
import structlog

from mmcached.gateway.processing.pool import NotWantedError
from mmcached.pictures import messages as said
from mmcached.pictures.confinement import CPU_SIGNAL
from mmcached.wire.errors import InvariantError, error_from_wire
from mmcached.wire.process.death import environment_for_children
from mmcached.wire.process.descriptors import write_all
from mmcached.wire.sockets.frames import Frame

log = structlog.get_logger("mmcached.frontend")

START_S = 120.0
"""Maximum seconds until a decoder is ready: with a checkpoint it imports Transformers, which is slow on a busy host."""

END_S = 5.0
"""Maximum seconds until a killed process has ended."""

LOOK_S = 0.1
"""Seconds between checks whether the file of a waiting thread is still wanted."""

_SMALL_BYTES = 1 << 20
"""Files up to this size leave their memory to the next one."""

_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(8 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 20)}
"""Returns the memory of large pictures to the system; else the heap keeps the size of the largest."""


class DecoderDiedError(Exception):
    """The process has ended while it had a file, or before it was ready.

    Attributes:
        status: Exit status as of `subprocess`: -9 after SIGKILL; None if the process does not end.
        pixels: Of the picture or a frame, if the file was opened.
        was_out_of_memory: Whether the process reported so before.
    """

    def __init__(self, status: int | None, *, pixels: int = 0, was_out_of_memory: bool = False) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.pixels = pixels
        self.was_out_of_memory = was_out_of_memory

    @property
    def was_cpu_limit(self) -> bool:
        return self.status == -CPU_SIGNAL

    @property
    def reason(self) -> str:
        if self.status is None or self.status >= 0:
            return f"status {self.status}"
        with contextlib.suppress(ValueError):
            return signal.Signals(-self.status).name
        return f"signal {-self.status}"


class ConfinedDecoder:
    """A decoder process, replaced when it dies; one thread uses it at a time.

    Args:
        module: Module that the process runs.
        settings: Settings sent to the process.
        says: Type of the messages that the process may send.
    """

    def __init__(self, module: str, settings: msgspec.Struct, says: Any) -> None:
        self._module = module
        self._settings_json = msgspec.json.encode(settings).decode()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._file = self._made = -1
        self._worked_s = 0.0
        self._from_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(says)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, is_wanted: Callable[[], bool]) -> None:
        """Start a process and wait until it is ready.

        Args:
            is_wanted: Called repeatedly while the process starts.
        Raises:
            OSError: No process, descriptor or memory is available.
            DecoderDiedError: It has ended, or is not ready after `START_S`.
            NotWantedError: `is_wanted` returned False.
        """
        self.close()
        give_up = time.monotonic() + START_S
        try:
            self._spawn()
            message = self.receive(lambda: is_wanted() and time.monotonic() < give_up)
        except NotWantedError:
            self._end()
            if is_wanted():
                raise DecoderDiedError(None) from None
            raise
        except Exception:
            self.close()
            raise
        if not isinstance(message, said.Ready):
            self.refuse(message)

    def close(self) -> None:
        """End the process and release the memory shared with it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for descriptor in (self._file, self._made):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._made = -1
        self._end()
        self._process = None

    # ---- for subclasses

    @contextlib.contextmanager
    def with_file(self, data: Frame) -> Iterator[None]:
        """Write a file to the shared memory until the end of the block; end the process after a `NotWantedError`."""
        write_all(self._file, data)
        self._worked_s = 0.0
        try:
            yield
        except NotWantedError:
            self._end()
            raise
        finally:
            if len(data) > _SMALL_BYTES and self._file >= 0:
                os.ftruncate(self._file, 0)

    def tell(self, message: msgspec.Struct) -> None:
        """Send a message.

        Raises:
            DecoderDiedError: The process has ended.
        """
        assert self._channel is not None
        try:
            self._channel.send(msgspec.msgpack.encode(message))
        except OSError:
            raise DecoderDiedError(self._status_of_the_dead()) from None

    def receive(self, is_wanted: Callable[[], bool], pixels: int = 0) -> Any:
        """Wait for a message.

        Args:
            is_wanted: Called repeatedly while waiting.
            pixels: Of the file, if known, for the error.
        Raises:
            DecoderDiedError: The process has ended.
            NotWantedError: `is_wanted` returned False.
        """
        assert self._channel is not None
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        asked_at = time.monotonic()
        while not poll.poll(LOOK_S * 1000):
            if not is_wanted():
                raise NotWantedError
        self._worked_s += time.monotonic() - asked_at
        try:
            packet = self._channel.recv(said.MAX_MESSAGE_BYTES)
        except OSError:
            packet = b""
        if not packet:
            raise DecoderDiedError(self._status_of_the_dead(), pixels=pixels)
        try:
            return self._from_decoder.decode(packet)
        except msgspec.MsgspecError:
            self.refuse(packet)

    def take_worked_s(self) -> float:
        """Return and clear the seconds that the process has worked since `with_file` or the last call."""
        worked_s, self._worked_s = self._worked_s, 0.0
        return worked_s

    def read_into(self, buffer: bytearray, place: int, message: object) -> None:
        """Fill a buffer from the result's memory, from byte `place` on."""
        if os.preadv(self._made, [buffer], place) < len(buffer):
            self.refuse(message)

    def free_made(self) -> None:
        """Free the memory of the result."""
        os.ftruncate(self._made, 0)

    def fail(self, message: object, pixels: int) -> NoReturn:
        """Raise the error of a file that was not decoded.

        Raises:
            MmcachedError: The file is refused.
            DecoderDiedError: The process has ended: out of memory, or because it sent an invalid message.
        """
        match message:
            case said.FileRefused():
                raise error_from_wire(message.error)
            case said.OutOfMemory():
                self._end()
                raise DecoderDiedError(0, pixels=pixels, was_out_of_memory=True)
            case said.DecoderFailed():
                raise InvariantError(message.text)
            case _:
                self.refuse(message)

    def refuse(self, message: object) -> NoReturn:
        """End a decoder that sent an invalid message."""
        log.error("a decoder said what may not be said now", message=repr(message)[:200])
        self._end()
        raise DecoderDiedError(None)

    # ---- the process

    def _spawn(self) -> None:
        self._file = os.memfd_create("mmcached file")
        self._made = os.memfd_create("mmcached pixels")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            shared = (theirs.fileno(), self._file, self._made)
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, *map(str, shared), self._settings_json],
                env=environment_for_children() | _MALLOC,
                pass_fds=shared,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # the terminal's Ctrl-C is for the frontend
            )

    def _end(self) -> int | None:
        """Kill the process; return its status, or None if the kernel cannot end it now."""
        if self._process is None:
            return None
        self._process.kill()
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            log.error("a decoder does not end", pid=self._process.pid)
            return None

    def _status_of_the_dead(self) -> int | None:
        """Return the status of a process that has closed its socket and is about to end."""
        assert self._process is not None
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return self._end()
