"""Pins mapped memory for a CUDA device, and copies from there to it: what `gpu` measures.

    registered    the ring's own pages, mapped read-only and pinned where they lie: one asynchronous copy
    bounce        copied by the CPU into one of two pinned buffers, and from there by the device
    pageable      given to the device as it is; the driver copies it through buffers of its own

Calls of CUDA's runtime go through ctypes: torch has no word for "read-only".
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch

from scripts.bench.harness import Unavailable

PORTABLE, READ_ONLY = 1, 8
"""Flags of `cudaHostRegister`."""
MAX_PIECE_BYTES = 1 << 30
"""Of one registration: a call for hundreds of GiB fails, and leaves an error that the next call is blamed for."""
BOUNCE_BYTES = 32 << 20


def require_cuda() -> torch.device:
    """Return the first CUDA device; raise `Unavailable` if there is none."""
    if not torch.cuda.is_available():
        raise Unavailable("no CUDA device here")
    return torch.device("cuda:0")


@cache
def _runtime() -> ctypes.CDLL:
    """Return the runtime that torch has loaded into this process."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libcudart" in path:
            return ctypes.CDLL(path)
    raise Unavailable("torch has loaded no libcudart of its own")


def new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def new_event(*, is_timed: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=is_timed)  # type: ignore[no-untyped-call]


def address_of(mapping: mmap.mmap) -> int:
    return int(np.frombuffer(mapping, np.uint8).__array_interface__["data"][0])


class RegisterRefused(Exception):
    """The device does not take these pages; the error is cleared."""


class Registered:
    """The first bytes of a mapping, pinned piece by piece, the lowest first.

    Attributes:
        nbytes: that are pinned.
        flags: that the device has taken; see `READ_ONLY`.
    Raises:
        RegisterRefused: not even the first piece is taken.
    """

    def __init__(self, mapping: mmap.mmap, nbytes: int, flags: int = PORTABLE | READ_ONLY) -> None:
        self.flags = flags
        self.nbytes = 0
        self._mapping = mapping
        self._pieces: list[int] = []
        start = address_of(mapping)
        while self.nbytes < nbytes:
            size = min(MAX_PIECE_BYTES, nbytes - self.nbytes)
            piece = start + self.nbytes
            error = _runtime().cudaHostRegister(ctypes.c_void_p(piece), ctypes.c_size_t(size), ctypes.c_uint(flags))
            if error:
                _runtime().cudaGetLastError()
                if not self._pieces:
                    raise RegisterRefused(f"cudaHostRegister: error {error} with flags {flags}")
                return
            self._pieces.append(piece)
            self.nbytes += size

    def close(self) -> None:
        """Unpin; nothing may be under way."""
        for piece in self._pieces:
            _runtime().cudaHostUnregister(ctypes.c_void_p(piece))
        self._pieces.clear()


@contextmanager
def registered(mapping: mmap.mmap, nbytes: int, flags: int = PORTABLE | READ_ONLY) -> Iterator[Registered]:
    pinned = Registered(mapping, nbytes, flags)
    try:
        yield pinned
    finally:
        torch.cuda.synchronize()
        pinned.close()


class Bounce:
    """Two pinned buffers, in turns: while the device reads one, the CPU fills the other."""

    def __init__(self, device: torch.device) -> None:
        self._stream = new_stream(device)
        self._buffers = [torch.empty(BOUNCE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        self._free = [new_event() for _ in self._buffers]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        """Copy `(n,)` uint8 from the host to the device; return the event behind it. The CPU's copies are made here."""
        for index, begin in enumerate(range(0, len(source), BOUNCE_BYTES)):
            buffer, free = self._buffers[index % 2], self._free[index % 2]
            piece = source[begin : begin + BOUNCE_BYTES]
            free.synchronize()
            buffer[: len(piece)].copy_(piece)
            with torch.cuda.stream(self._stream):
                target[begin : begin + len(piece)].copy_(buffer[: len(piece)], non_blocking=True)
                free.record(self._stream)
        return free


class Direct:
    """One asynchronous copy on a stream of its own, from memory that is pinned, or as far as the driver can."""

    def __init__(self, device: torch.device) -> None:
        self._stream = new_stream(device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            done = new_event()
            done.record(self._stream)
        return done
