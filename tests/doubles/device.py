"""A device that copies when it is told to, and memory that is pinned in a list: what CUDA does, without one.

A copy reads its source when it *ends*, so what was given back too early is seen as wrong bytes.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

import torch

from mmcached.client.device import DeviceLoader
from mmcached.client.device.devices import Cuda
from mmcached.client.device.runtime import PageRefused
from tests.integration.processes import DEADLINE_S


class HeldCopy:
    """One copy; it ends when the test says so."""

    def __init__(self, parts: Sequence[tuple[torch.Tensor, bool]]) -> None:
        self.are_pinned = [is_pinned for _, is_pinned in parts]
        self.target = torch.full((sum(len(part) for part, _ in parts),), 0xEE, dtype=torch.uint8)
        # By address, as a device reads: what it has been given is not kept alive by that.
        self._sources = [(part.data_ptr(), len(part)) for part, _ in parts]
        self._is_over = threading.Event()

    def end(self) -> None:
        begin = 0
        for address, nbytes in self._sources:
            ctypes.memmove(self.target.data_ptr() + begin, address, nbytes)
            begin += nbytes
        self._is_over.set()

    def query(self) -> bool:
        return self._is_over.is_set()

    def synchronize(self) -> None:
        assert self._is_over.wait(DEADLINE_S)


class HeldCopies:
    """Copies of a device, in order; `ends_at_once` for tests that look at something else."""

    def __init__(self, *, ends_at_once: bool = False) -> None:
        self.begun: list[HeldCopy] = []
        self._ends_at_once = ends_at_once

    def warm_up(self) -> None: ...

    def copy(self, parts: Sequence[tuple[torch.Tensor, bool]]) -> tuple[torch.Tensor, HeldCopy]:
        copy = HeldCopy(parts)
        self.begun.append(copy)
        if self._ends_at_once:
            copy.end()
        return copy.target, copy


class ListedRuntime:
    """Pinned memory, by address.

    Args:
        refuses_from: so many pieces are taken; then `error` is raised.
    Attributes:
        asked: the addresses that were to be pinned, in order.
        meanwhile: what happens while a piece is being pinned.
    """

    def __init__(self, *, refuses_from: int = 1 << 30, error: type[Exception] = PageRefused) -> None:
        self.pinned: dict[int, int] = {}
        self.asked: list[int] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self._refuses_from = refuses_from
        self._error = error

    def pin(self, address: int, nbytes: int) -> None:
        self.asked.append(address)
        self.meanwhile()
        if len(self.asked) > self._refuses_from:
            raise self._error("no more")
        assert address not in self.pinned
        self.pinned[address] = nbytes

    def unpin(self, address: int) -> None:
        ctypes.string_at(address, self.pinned.pop(address))  # it is mapped still, all of it


class HeldDevice(Cuda):
    """What an adapter has for CUDA, on the host, with copies that the test ends."""

    def __init__(self, copies: HeldCopies) -> None:
        super().__init__(torch.device("cpu"), 0)
        self._loader = DeviceLoader(self._device, copies=copies, runtime=ListedRuntime())
