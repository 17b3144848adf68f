"""Pins memory for a CUDA device, and copies from there and to there: what `gpu` compares the service's own way with."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from mmcached.client.device.loader import bytes_in
from mmcached.client.device.runtime import CudaRuntime, PageRefused
from mmcached.shm.segment.mapped import SHM_DIR, open_data
from mmcached.shm.segment.pages import Pages
from mmcached.wire.handle import RingAnnouncement
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
def pinned(ring: RingAnnouncement) -> Iterator[tuple[str, torch.Tensor]]:
    """Pin a ring, mapped as its readers map it; where the device refuses that, as none of them does: for writing.

    Yields:
        how it is mapped, and its bytes, `(n,)` uint8.
    Raises:
        PageRefused: the device takes neither.
    """
    with ExitStack() as stack:
        pages = open_data(ring)
        try:
            stack.enter_context(_pinned_for_reading(pages))
            how, data = "read-only", bytes_in(pages, 0, pages.nbytes)
        except PageRefused:
            descriptor = os.open(SHM_DIR / ring.data_name.lstrip("/"), os.O_RDWR)
            try:
                memory = mmap.mmap(descriptor, ring.data_bytes)
            finally:
                os.close(descriptor)
            how, data = "for writing", stack.enter_context(pinned_for_writing(memory))
        yield how, data


@contextmanager
def _pinned_for_reading(pages: Pages, piece_bytes: int = 1 << 30) -> Iterator[None]:
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
