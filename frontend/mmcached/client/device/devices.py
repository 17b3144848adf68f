"""Copies outputs from and to the device that a model runs on, for adapters and workers.

    host    an output is read in place: an encoder makes a new tensor each time, and does not write into it again
    CUDA    in and out: side streams copy while the step goes on. Loaded tensors are read out of the ring itself
            (`loader`); outputs are copied to pinned memory, and the saver waits for the copy's event
    others  out: a copy in the step

Loaded tensors are the caller's own: they never lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from mmcached.client.device import DeviceLoader
from mmcached.client.device.stopwatch import Stopwatch

Tensors = list[torch.Tensor]


class Device(Protocol):
    """A kind of device.

    Attributes:
        reads_in_place: Whether `load` copies, so that it accepts tensors in shared memory.
    """

    reads_in_place: bool

    def load(self, tensors: Tensors) -> Tensors:
        """Return tensors on the device that are the caller's own, for work queued on the current stream."""
        ...

    def begin_copy(self, tensors: Tensors) -> Callable[[], Tensors]:
        """Begin to copy an output; return a function that waits for the copy, in any thread, and returns it."""
        ...

    def stopwatch(self) -> Stopwatch | None:
        """Begin to time work queued on the current stream; None if timing the device means waiting for it."""
        ...

    def close(self) -> None:
        """Release the resources of the device; `load` must not be called any more."""
        ...


def device_of(name: str, *, max_pinned_bytes: int) -> Device:
    """Return the device of a name such as "cpu" or "cuda:0".

    Args:
        max_pinned_bytes: Maximum bytes of pinned shared memory, for CUDA; see `DeviceLoader`.
    """
    kind = name.partition(":")[0]
    if kind == "cpu":
        return Host()
    return Cuda(torch.device(name), max_pinned_bytes) if kind == "cuda" else Other(torch.device(name))


class Host:
    """The host's own memory."""

    reads_in_place = False

    def load(self, tensors: Tensors) -> Tensors:
        return tensors

    def begin_copy(self, tensors: Tensors) -> Callable[[], Tensors]:
        return lambda: [tensor.detach().contiguous() for tensor in tensors]

    def stopwatch(self) -> Stopwatch | None:
        return Stopwatch(torch.device("cpu"))

    def close(self) -> None:
        """Do nothing: no resources are held."""


class Other:
    """Any other device that tensors can be copied to and from."""

    reads_in_place = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def load(self, tensors: Tensors) -> Tensors:
        return [tensor.to(self._device) for tensor in tensors]

    def begin_copy(self, tensors: Tensors) -> Callable[[], Tensors]:
        copies = [tensor.detach().cpu().contiguous() for tensor in tensors]
        return lambda: copies

    def stopwatch(self) -> Stopwatch | None:
        return None

    def close(self) -> None:
        """Do nothing: no resources are held."""


class Cuda(Other):
    """An NVIDIA or AMD device."""

    _stream: torch.cuda.Stream | None = None
    _loader: DeviceLoader | None = None

    def __init__(self, device: torch.device, max_pinned_bytes: int) -> None:
        super().__init__(device)
        self._max_pinned_bytes = max_pinned_bytes

    def load(self, tensors: Tensors) -> Tensors:
        self._loader = self._loader or DeviceLoader(self._device, max_pinned_bytes=self._max_pinned_bytes)
        return self._loader.load(tensors)

    def close(self) -> None:
        if self._loader is not None:
            self._loader.close()

    def stopwatch(self) -> Stopwatch | None:
        return Stopwatch(self._device)

    def begin_copy(self, tensors: Tensors) -> Callable[[], Tensors]:
        if not all(tensor.is_cuda for tensor in tensors):  # the host program has moved them away
            return super().begin_copy(tensors)
        copies = [torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True) for tensor in tensors]
        place = tensors[0].device  # has an index, also if our device was named without one
        stream = self._stream = self._stream or torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(place))  # the encoder's work comes first
        with torch.cuda.stream(stream):
            for copy, tensor in zip(copies, tensors, strict=True):
                copy.copy_(tensor.detach(), non_blocking=True)
                tensor.record_stream(stream)  # its memory is not reused before the copy has ended
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)

        def wait() -> Tensors:
            done.synchronize()
            return copies

        return wait
