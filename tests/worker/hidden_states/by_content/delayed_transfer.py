"""A device that this machine need not have: copies that are done only after some polls, or when somebody waits.

Until then their rows are poison, and so they are after their release; whoever looks at the wrong time gets numbers that
nobody has written. What is sent is cloned, as a device does it that gets on with its work in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mmcached.worker.hidden_states.device_copy import TransferFor

_POISON = 0x55
NEVER = 1 << 30


class DelayedTransfer:
    """Attributes:
    polls: returns how often a copy is asked in vain.
    open_copies: begun and not released.
    """

    pinned_nbytes = 0

    def __init__(self, polls: Callable[[], int] = lambda: NEVER) -> None:
        self.polls = polls
        self.open_copies: list[DelayedCopy] = []
        self.num_started = 0

    def start(self, tensors: Sequence[torch.Tensor]) -> DelayedCopy:
        copy = DelayedCopy(self, [self.clone(rows) for rows in tensors], self.polls())
        self.open_copies.append(copy)
        self.num_started += 1
        return copy

    def clone(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.clone()

    def let_arrive(self, *copies: DelayedCopy) -> None:
        for copy in copies or self.open_copies:
            copy.num_polls = 0


class DelayedCopy:
    def __init__(self, transfer: DelayedTransfer, sent: Sequence[torch.Tensor], num_polls: int) -> None:
        self.nbytes = sum(rows.nbytes for rows in sent)
        self.num_polls = num_polls
        self._transfer = transfer
        self._sent = sent
        self._rows = [poisoned(torch.empty_like(rows)) for rows in sent]
        self._is_there = False

    def is_done(self) -> bool:
        self.num_polls -= 1
        if self.num_polls < 0:
            self.wait()
        return self._is_there

    def wait(self) -> None:
        if not self._is_there:
            self._is_there = True
            for rows, sent in zip(self._rows, self._sent, strict=True):
                rows.copy_(sent)

    def rows(self) -> Sequence[torch.Tensor]:
        return self._rows

    def release(self) -> None:
        assert self._is_there, "memory is given back while it is being written"
        self._transfer.open_copies.remove(self)
        for rows in self._rows:
            poisoned(rows)


def poisoned(rows: torch.Tensor) -> torch.Tensor:
    rows.reshape(-1).view(torch.uint8).fill_(_POISON)
    return rows


def delayed(polls: Callable[[], int]) -> TransferFor:
    """Return what makes such transfers, whatever the device."""
    return lambda device, keep_nbytes: DelayedTransfer(polls)
