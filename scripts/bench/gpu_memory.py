"""Pins memory for a CUDA device, and copies from there and to there: what `gpu` compares the service's own way with."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from mmcached.client.device.runtime import CudaRuntime, PageRefused
from mmcached.shm.segment.pages import Pages
from scripts.bench.harness import Unavailable


def require_cuda() -> torch.device:
    """Return the first CUDA device, which has its context then; raise `Unavailable` if there is none."""
    if not torch.cuda.is_available():
        raise Unavailable("no CUDA device here")
    device = torch.device("cuda:0")
    torch.cuda.synchronize(device)  # makes the context, which takes longer than much of what is measured
    return device


def new_event(*, is_timed: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=is_timed)  # type: ignore[no-untyped-call]


@contextmanager
def pinned(pages: Pages, piece_bytes: int = 1 << 30) -> Iterator[None]:
    """Pin all records of a mapped ring, piece by piece, the lowest first.

    Raises:
        PageRefused: a piece is not taken; nothing stays pinned.
    """
    runtime, pieces = CudaRuntime(require_cuda()), list[int]()
    try:
        for begin in range(0, pages.nbytes, piece_bytes):
            runtime.pin(pages.address + begin, min(piece_bytes, pages.nbytes - begin))
            pieces.append(pages.address + begin)
        yield
    finally:
        torch.cuda.synchronize()
        for piece in pieces:
            runtime.unpin(piece)


@contextmanager
def pinned_for_writing(memory: mmap.mmap) -> Iterator[torch.Tensor]:
    """Yield this process's own memory as `(n,)` uint8, pinned: what a ring would be that it writes itself."""
    host = torch.from_numpy(np.frombuffer(memory, np.uint8))
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if error := int(runtime.cudaHostRegister(host.data_ptr(), len(host), 1)):
        raise PageRefused(f"cudaHostRegister: error {error}")
    try:
        yield host
    finally:
        torch.cuda.synchronize()
        runtime.cudaHostUnregister(host.data_ptr())


class Direct:
    """One asynchronous copy on a stream of its own, from memory that is pinned, or as far as the driver can."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            done = new_event()
            done.record(self._stream)
        return done
