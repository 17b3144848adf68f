"""Copies bytes of the host onto a CUDA device, on a stream of its own.

    pinned       the device reads them where they lie
    others       through pinned memory, a piece after the other: while the device reads one, this thread fills the next.
                 Torch keeps that memory, and has it used again when the device has read it

The current stream waits for the copy on the device; this thread does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

import torch

from mmcached.client.device.runtime import PageRefused, allow_beside_captures

BOUNCE_BYTES = 32 << 20
"""Of what is copied by way of other memory at a time."""


class Done(Protocol):
    """A copy that is under way."""

    def query(self) -> bool:
        """Return whether it has ended."""
        ...

    def synchronize(self) -> None:
        """Wait until it has ended."""
        ...


class Copies(Protocol):
    """What copies onto one device."""

    def warm_up(self) -> None:
        """Prepare the thread that will wait for copies, and take the memory that they go through: that makes a device
        wait, so it is done before.
        """
        ...

    def copy(self, parts: Sequence[tuple[torch.Tensor, bool]]) -> tuple[torch.Tensor, Done]:
        """Return the bytes of all parts, one behind the other, on the device.

        They are there for whatever is queued on the current stream from now on.

        Args:
            parts: bytes of the host, `(n,)` uint8, and whether they are pinned; they must not change until the copy
                has ended.
        """
        ...


class CudaCopies:
    """Copies onto one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def warm_up(self) -> None:
        with torch.cuda.device(self._device):
            with contextlib.suppress(PageRefused):  # where that runtime is not, there is nothing to allow
                allow_beside_captures()
            _ = _pinned(), _pinned()

    def copy(self, parts: Sequence[tuple[torch.Tensor, bool]]) -> tuple[torch.Tensor, Done]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            # Memory of this stream: nothing that the current stream still does with former memory has to be awaited.
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
        target.record_stream(current)  # its memory is not used again before that stream has come so far
        return target, done


def _pinned() -> torch.Tensor:
    return torch.empty(BOUNCE_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)  # whatever the default device
