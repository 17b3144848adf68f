"""Runs a decoder for the frontend: a process that takes one picture at a time, and that may die of any.

    Decoder.start ──> Decoder.process ──> Pixels, or what the picture is refused with
                              │
                              └── the process has died: DecoderDied; start another

The file goes to it, and the pixels come back, in memory that both have (two memfds), never through a pipe. What it says
is checked. It belongs to the thread that starts it: it dies with that thread, hence with this process.
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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec
import numpy as np
import numpy.typing as npt
import structlog

from mmcached.frontend.processing.pool import NotWantedError
from mmcached.pictures import messages as said
from mmcached.pictures.confinement import CPU_SIGNAL
from mmcached.pictures.settings import PictureSettings
from mmcached.shm.store.tensor_bytes import NUMPY_ITEMSIZES, TensorType
from mmcached.wire.errors import InvariantError, RemoteProtocolError, error_from_wire
from mmcached.wire.process.death import environment_for_children

log = structlog.get_logger("mmcached.frontend")

START_S = 30.0
"""How long a decoder may take to be ready."""

END_S = 5.0
"""How long a killed process may take to end."""

LOOK_S = 0.1
"""How often whoever waits for a decoder looks whether its picture is still wanted."""

_SMALL_BYTES = 1 << 20
"""Files up to this size leave their memory to the next one."""

_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(8 << 20), "MALLOC_TRIM_THRESHOLD_": str(8 << 20)}
"""What a large picture took goes back to the system; else the heap keeps the largest one's."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """A scaled picture: rows of pixels, 3 bytes each."""

    width: int
    height: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Tensors:
    """What an image processor has made of a picture, by name; owned."""

    arrays: Mapping[str, npt.NDArray[Any]]


class DecoderDiedError(Exception):
    """The process has ended with a picture in hand, or before it was ready.

    Attributes:
        status: as `subprocess` tells it: -9 after SIGKILL; None if it does not end.
        pixels: of the picture, if it was opened.
        was_out_of_memory: it said so before.
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


class Decoder:
    """One decoder process after the other; one thread uses it at a time."""

    def __init__(self, settings: PictureSettings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._file = self._pixels = -1
        self._from_decoder: msgspec.msgpack.Decoder[said.FromDecoder] = msgspec.msgpack.Decoder(said.FromDecoder)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, is_wanted: Callable[[], bool]) -> None:
        """Start a process and wait until it is ready.

        Args:
            is_wanted: asked again and again while the process works.
        Raises:
            OSError: there is no process, descriptor or memory for it.
            DecoderDiedError: it has ended, or does not become ready.
            NotWantedError: see `is_wanted`.
        """
        self.close()
        give_up = time.monotonic() + START_S
        try:
            self._spawn()
            message = self._receive(lambda: is_wanted() and time.monotonic() < give_up)
        except NotWantedError:
            self._end()
            if is_wanted():
                raise DecoderDiedError(None) from None
            raise
        except Exception:
            self.close()
            raise
        if not isinstance(message, said.Ready):
            raise self._liar(message)

    def process(
        self,
        data: bytes,
        *,
        is_wanted: Callable[[], bool],
        before_pixels: Callable[[int], contextlib.AbstractContextManager[None]],
    ) -> Pixels | Tensors:
        """Have a picture decoded, and scaled or processed.

        Args:
            data: the file.
            is_wanted: asked again and again while the process works.
            before_pixels: entered with the number of pixels before they are decoded, left when they are done with.
        Raises:
            MmcachedError: what the file is refused with; calls it "image".
            DecoderDiedError: the process has ended.
            NotWantedError: see `is_wanted`.
        """
        _write(self._file, data)
        try:
            self._tell(said.Decode(len(data)))
            answer = self._receive(is_wanted)
            if not isinstance(answer, said.Opened):
                raise self._failure(answer, 0)
            with before_pixels(answer.pixels):
                self._tell(said.GoOn())
                made = self._receive(is_wanted, answer.pixels)
                if isinstance(made, said.Processed) and self._settings.processor_folder:
                    return self._tensors_of(made)
                if not isinstance(made, said.Made):
                    raise self._failure(made, answer.pixels)
                return self._pixels_of(made)
        except NotWantedError:
            self._end()
            raise
        finally:
            if len(data) > _SMALL_BYTES and self._file >= 0:
                os.ftruncate(self._file, 0)

    def close(self) -> None:
        """End the process and let go of what is shared with it."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        for descriptor in (self._file, self._pixels):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._pixels = -1
        self._end()
        self._process = None

    # ---- the process

    def _spawn(self) -> None:
        self._file = os.memfd_create("mmcached file")
        self._pixels = os.memfd_create("mmcached pixels")
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            shared = (theirs.fileno(), self._file, self._pixels)
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mmcached.pictures.decoder"),
                    *map(str, shared),
                    msgspec.json.encode(self._settings).decode(),
                ],
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

    # ---- messages

    def _tell(self, message: said.ToDecoder) -> None:
        assert self._channel is not None
        try:
            self._channel.send(msgspec.msgpack.encode(message))
        except OSError:
            raise DecoderDiedError(self._status_of_the_dead()) from None

    def _receive(self, is_wanted: Callable[[], bool], pixels: int = 0) -> said.FromDecoder:
        assert self._channel is not None
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        while not poll.poll(LOOK_S * 1000):
            if not is_wanted():
                raise NotWantedError
        try:
            packet = self._channel.recv(said.MAX_MESSAGE_BYTES)
        except OSError:
            packet = b""
        if not packet:
            raise DecoderDiedError(self._status_of_the_dead(), pixels=pixels)
        try:
            return self._from_decoder.decode(packet)
        except msgspec.MsgspecError:
            raise self._liar(packet) from None

    def _failure(self, message: said.FromDecoder, pixels: int) -> Exception:
        """Return what a picture ends with that was not decoded."""
        match message:
            case said.Refused():
                return error_from_wire(message.error)
            case said.OutOfMemory():
                self._end()
                return DecoderDiedError(0, pixels=pixels, was_out_of_memory=True)
            case said.Failed():
                return InvariantError(message.text)
            case said.Ready() | said.Opened() | said.Made() | said.Processed():
                return self._liar(message)
            case _:
                assert_never(message)

    def _pixels_of(self, made: said.Made) -> Pixels:
        side, limit = self._settings.patch_size, self._settings.max_patches
        num_bytes = made.width * made.height * 3
        if made.width % side or made.height % side or made.width * made.height > limit * side**2:
            raise self._liar(made)
        data = os.pread(self._pixels, num_bytes, 0)
        if len(data) < num_bytes:
            raise self._liar(made)
        return Pixels(made.width, made.height, data)

    def _tensors_of(self, made: said.Processed) -> Tensors:
        """Read what lies there; no more than a decoder may have in memory."""
        try:
            kinds = [TensorType.checked(form.dtype, list(form.shape), form.name) for form in made.tensors]
        except RemoteProtocolError:
            raise self._liar(made) from None
        are_plain = all(kind.nbytes and kind.dtype in NUMPY_ITEMSIZES for kind in kinds)
        if not are_plain or sum(kind.nbytes for kind in kinds) > self._settings.memory_bytes:
            raise self._liar(made)
        arrays, place = {}, 0
        for form, kind in zip(made.tensors, kinds, strict=True):
            data = bytearray(kind.nbytes)
            if os.preadv(self._pixels, [data], place) < kind.nbytes:
                raise self._liar(made)
            arrays[form.name] = np.frombuffer(data, kind.dtype).reshape(kind.shape)
            place += kind.nbytes
        os.ftruncate(self._pixels, 0)
        return Tensors(arrays)

    def _liar(self, message: object) -> DecoderDiedError:
        """End a decoder that says what may not be said."""
        log.error("a decoder said what may not be said now", message=repr(message)[:200])
        self._end()
        return DecoderDiedError(None)

    def _status_of_the_dead(self) -> int | None:
        """Return the status of a process that has closed its socket: it is just ending."""
        assert self._process is not None
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return self._end()


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.pwrite(file, rest, len(data) - len(rest)) :]
