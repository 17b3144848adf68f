"""Pins pages that this process may only read, through the CUDA runtime that torch has loaded.

Torch offers no such call: its own calls need writable pages.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Protocol

import torch

_PORTABLE, _READ_ONLY = 1, 8
"""Flags of `cudaHostRegister`: for all contexts of this process; the device only reads."""
_RELAXED = 2
"""Value of `cudaStreamCaptureMode`."""


class PageRefused(Exception):
    """The device refuses these pages; the CUDA error is cleared, so that no later call reports it."""


class Runtime(Protocol):
    """Pins and unpins pages; any thread may call it."""

    def pin(self, address: int, nbytes: int) -> None:
        """Pin mapped pages.

        Raises:
            PageRefused: The pages stay unpinned.
        """
        ...

    def unpin(self, address: int) -> None:
        """Unpin the pages pinned at an address, before they are unmapped."""
        ...


class CudaRuntime:
    """The CUDA runtime of this process, which torch uses already."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def pin(self, address: int, nbytes: int) -> None:
        flags = _PORTABLE | _READ_ONLY
        with torch.cuda.device(self._device):  # else a thread's first call makes a context on the first device
            library = _library()
            error = library.cudaHostRegister(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.c_uint(flags))
            if error:
                library.cudaGetLastError()
                raise PageRefused(f"cudaHostRegister of {nbytes} bytes: error {error}")

    def unpin(self, address: int) -> None:
        with torch.cuda.device(self._device):
            if _library().cudaHostUnregister(ctypes.c_void_p(address)):
                _library().cudaGetLastError()


def allow_beside_captures() -> None:
    """Let this thread pin and wait while other threads capture CUDA graphs.

    Without this call its CUDA calls would break their graphs. This thread must never capture a graph itself.

    Source: `torch.cuda.graph` in its default mode; torch's own NCCL watchdog needs the same call (148594).

    Raises:
        PageRefused: There is no such runtime.
    """
    _library().cudaThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))


@cache
def _library() -> ctypes.CDLL:
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "libcudart" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[-1])
    raise PageRefused("torch has loaded no CUDA runtime of its own: the device is not NVIDIA's")
