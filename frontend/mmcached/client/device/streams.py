"""Copies bytes of the host onto a CUDA device, on a stream of its own.

    pinned       the device reads them in place
    others       through pinned memory, piece by piece: while the device reads one, this thread fills the next.
                 Torch caches that memory, and reuses it once the device has read it

The current stream waits for the copy on the device; this thread does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

import torch

from mmcached.client.device.runtime import PageRefused, allow_beside_captures

BOUNCE_BYTES = 32 << 20
"""Bytes copied through other memory at a time."""


class RunningCopy(Protocol):
    """A copy in progress."""

    def query(self) -> bool:
        """Return whether it has ended."""
        ...

    def synchronize(self) -> None:
        """Wait until it has ended."""
        ...


class Copies(Protocol):
    """Copies onto one device."""

    def warm_up(self) -> None:
        """Prepare the thread that will wait for copies, and allocate the memory for them.

        Done in advance, because the allocation makes a device wait.
        """
        ...

    def copy(self, parts: Sequence[tuple[torch.Tensor, bool]]) -> tuple[torch.Tensor, RunningCopy]:
        """Return the bytes of all parts, one after the other, on the device.

        They are ready for work queued on the current stream from now on.

        Args:
            parts: Bytes of the host, `(n,)` uint8, and whether they are pinned; they must not change until the copy has
                ended.
        """
        ...


class CudaCopies:
    """Copies onto one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def warm_up(self) -> None:
        with torch.cuda.device(self._device):
            with contextlib.suppress(PageRefused):  # without that runtime no call is needed
                allow_beside_captures()
            _ = _pinned(), _pinned()

    def copy(self, parts: Sequence[tuple[torch.Tensor, bool]]) -> tuple[torch.Tensor, RunningCopy]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            # Memory of this stream: it need not wait for the current stream's work on reused memory.
            target = torch.empty(sum(len(part) for part, _ in parts), dtype=torch.uint8, device=self._device)
            begin = 0
            for part, is_pinned in parts:
                for piece in [part] if is_pinned else part.split(BOUNCE_BYTES):  # type: ignore[no-untyped-call]
                    host = piece if is_pinned else _pinned()[: len(piece)].copy_(piece)
                    target[begin : begin + len(piece)].copy_(host, non_blocking=True)
                    begin += len(piece)
            done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            done.record(self._stream)
        current = torch.cuda.current_stream(self._device)
        current.wait_event(done)
        target.record_stream(current)  # its memory is not reused before that stream has reached this point
        return target, done


def _pinned() -> torch.Tensor:
    return torch.empty(BOUNCE_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)  # not the default device
