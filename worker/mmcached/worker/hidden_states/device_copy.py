"""Copies rows from a CUDA device to host memory asynchronously.

    tensors of a step  --clone, all packed-->  device buffer  --one copy-->  pinned buffer    then one event
                          engine's stream                      side stream, which waits for the clone

The engine may write into its tensors as soon as `start` returns, which does not wait. All calls must come on one
stream, or on streams that the caller has ordered.

Invariant: the rows of a copy are valid from its completion until `release`; a pinned buffer is reused only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from mmcached.worker.hidden_states.buffer_pool import BufferPool

PADDING = 16
"""Alignment of each tensor in bytes, a multiple of every element size; costs fewer bytes than this per tensor."""


class Copy(Protocol):
    """Pending copy; uses `nbytes` of host memory until `release`, and as much of the device."""

    nbytes: int

    def is_done(self) -> bool: ...

    def wait(self) -> None:
        """Wait for these rows, but not for later work."""

    def rows(self) -> Sequence[torch.Tensor]:
        """Return each tensor on the CPU, valid until `release`. The copy must be done."""

    def release(self) -> None:
        """Give the memory back. The copy must be done."""


class Transfer(Protocol):
    @property
    def pinned_nbytes(self) -> int:
        """Bytes of pinned host memory kept for reuse."""

    def start(self, tensors: Sequence[torch.Tensor]) -> Copy:
        """Begin one copy of all these tensors."""


TransferFor = Callable[[torch.device, int], Transfer | None]
"""(device, bytes of host memory kept for reuse) -> transfer; None if the device's rows are read synchronously."""


def transfer_for(device: torch.device, keep_nbytes: int) -> Transfer | None:
    return CudaTransfer(device, keep_nbytes) if device.type == "cuda" else None


class CudaTransfer:
    """Copies from one CUDA device, with pinned memory that is allocated on demand and reused."""

    def __init__(self, device: torch.device, keep_nbytes: int) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = BufferPool(keep_nbytes, _pinned)

    @property
    def pinned_nbytes(self) -> int:
        return self._pool.kept_nbytes

    def start(self, tensors: Sequence[torch.Tensor]) -> Copy:
        with torch.cuda.device(self._device):
            packing = Packing(tensors)
            packed = torch.empty(packing.nbytes, dtype=torch.uint8, device=self._device)
            for tensor, view in zip(tensors, packing.views(packed), strict=True):
                view.copy_(tensor)
            pinned = self._pool.take_buffer(packing.nbytes)
            # The clone must be complete before it is read. Later work of the engine is not waited for.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                pinned[: packing.nbytes].copy_(packed, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(self._stream)
            # Otherwise the allocator could reuse it for the engine's stream while the side stream still reads it.
            packed.record_stream(self._stream)
        return _CudaCopy(self._pool, pinned, packed, event, packing)


class _CudaCopy:
    """Copy from a CUDA device. Holds the device buffer, so that its memory is counted while it is in use."""

    def __init__(
        self,
        pool: BufferPool[torch.Tensor],
        pinned: torch.Tensor,
        packed: torch.Tensor,
        event: torch.cuda.Event,
        packing: Packing,
    ) -> None:
        self.nbytes = len(packed)
        self._pool = pool
        self._pinned = pinned
        self._packed: torch.Tensor | None = packed
        self._event = event
        self._packing = packing

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def rows(self) -> Sequence[torch.Tensor]:
        return self._packing.views(self._pinned)

    def release(self) -> None:
        if self._packed is not None:
            self._packed = None
            self._pool.give_back(self._pinned)


class Packing:
    """Offsets of tensors in one buffer of `nbytes`."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._places: list[tuple[int, torch.Size, torch.dtype]] = []
        self.nbytes = 0
        for tensor in tensors:
            begin = -(-self.nbytes // PADDING) * PADDING
            self._places.append((begin, tensor.shape, tensor.dtype))
            self.nbytes = begin + tensor.nbytes

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        return [
            buffer[begin : begin + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for begin, shape, dtype in self._places
        ]


def _pinned(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
