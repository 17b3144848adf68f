"""How rows get from where they lie into host memory.

    rows of a CUDA device   --clone, all packed-->  device buffer  --one copy-->  pinned buffer    one event behind it
                               engine's stream                      side stream, which waits for the clone

    other rows              nothing is sent: they are there at once

What is sent is a copy: the engine may write into its buffers as soon as `start` or `clone` returns, on the stream on
which it has called. Neither waits for the device. All calls come on one stream, or on streams that the caller has put
in order.

Knows nothing of arenas, requests or steps. Invariant: the rows of a copy are right once `is_done` has said so or `wait`
has returned, until `release`; a pinned buffer is used again only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch

from mmcached.worker.prefix_store.buffers import BufferPool

PADDING = 16
"""Each part begins at a multiple of it, which is one of every element's size; so a part takes less than that on top."""


class Part(NamedTuple):
    """Rows of one dtype and shape: so many in all, in one tensor or several that follow each other."""

    num_rows: int
    pieces: Sequence[torch.Tensor]


class Copy(Protocol):
    """Rows under way.

    Attributes:
        nbytes: of the host memory that is taken until `release`, and of the device memory as well.
    """

    nbytes: int

    def is_done(self) -> bool:
        """Return whether the rows are there; does not wait."""

    def wait(self) -> None:
        """Wait for these rows, and for nothing that was begun later."""

    def rows(self) -> Sequence[torch.Tensor]:
        """Return each part, `(rows, *shape)` on the CPU, valid until `release`. It must be done."""

    def release(self) -> None:
        """Give the memory back. It must be done."""


class Transfer(Protocol):
    """For rows of one device.

    Attributes:
        is_immediate: rows need not be sent: a copy is done when it begins, and its rows may be those that were given.
        pinned_nbytes: host memory that waits to be used again.
    """

    is_immediate: bool

    @property
    def pinned_nbytes(self) -> int: ...

    def clone(self, rows: torch.Tensor) -> torch.Tensor:
        """Return a copy on the same device."""

    def start(self, parts: Sequence[Part]) -> Copy:
        """Begin one copy of all parts."""


TransferFor = Callable[[torch.device, int], Transfer]
"""Given a device, and how many bytes of host memory may wait to be used again."""


def transfer_for(device: torch.device, keep_nbytes: int) -> Transfer:
    return CudaTransfer(device, keep_nbytes) if device.type == "cuda" else HostTransfer()


class HostTransfer:
    """For rows of the CPU; those of a device without streams are waited for."""

    is_immediate = True
    pinned_nbytes = 0

    def clone(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.clone()

    def start(self, parts: Sequence[Part]) -> Copy:
        return _Here([(pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))).cpu() for _, pieces in parts])


class _Here:
    """Rows that need not be sent."""

    nbytes = 0

    def __init__(self, rows: Sequence[torch.Tensor]) -> None:
        self._rows = rows

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def rows(self) -> Sequence[torch.Tensor]:
        return self._rows

    def release(self) -> None:
        self._rows = ()


class CudaTransfer:
    """For rows of one CUDA device. Pinned memory is allocated as it is needed, and used again."""

    is_immediate = False

    def __init__(self, device: torch.device, keep_nbytes: int) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = BufferPool(keep_nbytes, _pinned)

    @property
    def pinned_nbytes(self) -> int:
        return self._pool.kept_nbytes

    def clone(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.cuda.device(self._device):
            return rows.clone(memory_format=torch.contiguous_format)

    def start(self, parts: Sequence[Part]) -> Copy:
        with torch.cuda.device(self._device):
            layout, nbytes = _layout(parts)
            packed = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
            for part, (begin, shape, dtype) in zip(parts, layout, strict=True):
                _pack(part.pieces, _view(packed, begin, shape, dtype))
            pinned = self._pool.take(nbytes)
            # The clone must be complete before it is read. What the engine starts from here on, nobody waits for.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                pinned[:nbytes].copy_(packed, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(self._stream)
            # Freed as memory of the engine's stream, it would be handed out again while the side stream still reads.
            packed.record_stream(self._stream)
        return _OnItsWay(self._pool, pinned, packed, event, layout)


_Layout = list[tuple[int, torch.Size, torch.dtype]]


class _OnItsWay:
    """A copy from a device. Holds the device buffer, so that it is counted as long as it is needed."""

    def __init__(
        self,
        pool: BufferPool[torch.Tensor],
        pinned: torch.Tensor,
        packed: torch.Tensor,
        event: torch.cuda.Event,
        layout: _Layout,
    ) -> None:
        self.nbytes = len(packed)
        self._pool = pool
        self._pinned = pinned
        self._packed: torch.Tensor | None = packed
        self._event = event
        self._layout = layout

    def is_done(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def rows(self) -> Sequence[torch.Tensor]:
        return [_view(self._pinned, begin, shape, dtype) for begin, shape, dtype in self._layout]

    def release(self) -> None:
        if self._packed is not None:
            self._packed = None
            self._pool.give_back(self._pinned)


def _layout(parts: Sequence[Part]) -> tuple[_Layout, int]:
    """Return where each part lies in a buffer and what it looks like, and how long the buffer is."""
    layout: _Layout = []
    end = 0
    for num_rows, pieces in parts:
        begin = -(-end // PADDING) * PADDING
        shape = torch.Size((num_rows, *pieces[0].shape[1:]))
        layout.append((begin, shape, pieces[0].dtype))
        end = begin + shape.numel() * pieces[0].dtype.itemsize
    return layout, end


def _view(buffer: torch.Tensor, begin: int, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    nbytes = shape.numel() * dtype.itemsize
    return buffer[begin : begin + nbytes].view(dtype).view(shape)


def _pack(pieces: Sequence[torch.Tensor], target: torch.Tensor) -> None:
    if len(pieces) == 1:
        target.copy_(pieces[0])
    elif target.dtype.itemsize == 1:
        # Not every type of one byte can be concatenated.
        torch.cat([rows.view(torch.uint8) for rows in pieces], out=target.view(torch.uint8))
    else:
        torch.cat(list(pieces), out=target)


def _pinned(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
