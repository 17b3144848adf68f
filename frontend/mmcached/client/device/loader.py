"""Loads tensors that lie in shared memory onto a CUDA device; neither the caller nor its stream's work waits.

    load ──> the record's bytes in one copy, on a stream of its own ──> tensors on the device, in one allocation
               └── the views, and with them their lease, are held until the copy has ended

Tensors elsewhere, or not dense, are copied by torch. Loaded tensors are the caller's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

from mmcached.client.device.pinned_pages import PIECE_BYTES, PinnedPages
from mmcached.client.device.runtime import CudaRuntime, Runtime
from mmcached.client.device.streams import Copies, CudaCopies, RunningCopy
from mmcached.shm.segment.pages import Pages, find
from mmcached.wire.closeable import Closeable

MAX_GAP_BYTES = 4096
"""Maximum gap between two tensors copied together; tensors of one record are less than 64 bytes apart."""
MAX_PINNED_BYTES = 2 << 30


class DeviceLoader(Closeable):
    """Loads tensors onto one device; any thread may call it.

    Args:
        device: A device such as "cuda:0"; without an index, the current one of this thread.
        max_pinned_bytes: Maximum bytes of shared memory, pinned where records are read again; 0: none is pinned, and
            all tensors are copied through other memory. Of several loaders in a process, the first to pin a piece owns
            it.
        piece_bytes: Bytes pinned in one call.
        copies, runtime: Implementations of copying and pinning; CUDA's by default.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        max_pinned_bytes: int = MAX_PINNED_BYTES,
        piece_bytes: int = PIECE_BYTES,
        copies: Copies | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._device = torch.empty(0, device=device).device  # with an index: our thread's current device may differ
        self._copies = copies or CudaCopies(self._device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mmcached device")
        self._pinned = PinnedPages(
            runtime or CudaRuntime(self._device),
            max_bytes=max_pinned_bytes,
            piece_bytes=piece_bytes,
            later=self._thread.submit,
        )
        self._thread.submit(self._copies.warm_up)
        self._held: dict[RunningCopy, list[torch.Tensor]] = {}  # one key is set or removed at a time, by any thread

    @property
    def pinned_bytes(self) -> int:
        """Bytes of shared memory that are pinned now."""
        return self._pinned.nbytes

    def load(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return copies on the device, for work queued on the current stream from now on.

        The tensors may be dropped at once.
        """
        self.release()
        loaded: dict[int, torch.Tensor] = {}
        for run in _runs(tensors):
            parts = [
                (bytes_in(run.pages, part.begin, part.end), part.is_pinned)
                for part in self._pinned.parts_of(run.pages, run.begin, run.end)
            ]
            copied, done = self._copies.copy(parts)
            self._held[done] = [tensors[index] for index in run.indexes]
            self._thread.submit(self._wait_for, done)
            for index in run.indexes:
                loaded[index] = _tensor_in(copied, tensors[index], run)
        return [loaded[index] if index in loaded else each.to(self._device) for index, each in enumerate(tensors)]

    def release(self) -> None:
        """Release tensors whose copies have ended; this also happens by itself shortly after."""
        for done in list(self._held):
            if done.query():
                self._held.pop(done, None)

    def close(self) -> None:
        """Wait for copies in progress, and release all memory. A second call does nothing."""
        self._thread.shutdown(cancel_futures=True)
        for done in list(self._held):
            self._wait_for(done)
        self._pinned.close()

    def _wait_for(self, done: RunningCopy) -> None:
        done.synchronize()
        self._held.pop(done, None)


class _Run(NamedTuple):
    """Adjacent tensors: their indexes, and the begin and end of their bytes in the pages."""

    pages: Pages
    begin: int
    end: int
    indexes: list[int]


def _runs(tensors: Sequence[torch.Tensor]) -> Iterator[_Run]:
    run: _Run | None = None
    for index in sorted(range(len(tensors)), key=lambda index: tensors[index].data_ptr()):
        tensor = tensors[index]
        pages = find(tensor.data_ptr(), tensor.nbytes) if _is_dense(tensor) else None
        if pages is None:
            continue
        begin = tensor.data_ptr() - pages.address
        if run is not None and run.pages is pages and _fits_behind(run, begin, tensor):
            run = run._replace(end=max(run.end, begin + tensor.nbytes), indexes=[*run.indexes, index])
            continue
        if run is not None:
            yield run
        run = _Run(pages, begin, begin + tensor.nbytes, [index])
    if run is not None:
        yield run


def _is_dense(tensor: torch.Tensor) -> bool:
    is_plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and tensor.is_contiguous()
    return is_plain and not tensor.is_conj() and not tensor.is_neg()


def _fits_behind(run: _Run, begin: int, tensor: torch.Tensor) -> bool:
    return begin - run.end <= MAX_GAP_BYTES and (begin - run.begin) % tensor.itemsize == 0


def bytes_in(pages: Pages, begin: int, end: int) -> torch.Tensor:
    """Return a view of the bytes, `(end - begin,)` uint8, which must never be written."""
    array = pages.bytes_of(begin, end)
    return torch.from_dlpack(array.__dlpack__(max_version=(1, 0)))  # type: ignore[attr-defined]


def _tensor_in(copied: torch.Tensor, tensor: torch.Tensor, run: _Run) -> torch.Tensor:
    begin = tensor.data_ptr() - run.pages.address - run.begin
    return copied[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
