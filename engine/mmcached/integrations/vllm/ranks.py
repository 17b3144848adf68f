"""Agrees on failed loads among the ranks of an engine."""

from __future__ import annotations

from typing import Any

import torch


def failed_in_any(failures: list[bool], group: Any) -> list[bool]:
    """Return for each load whether it has failed in any rank; collective: every rank calls it with a list of one
    length.

    Args:
        group: A process group that communicates over the host, not over its devices.
    """
    flags = torch.tensor(failures, dtype=torch.uint8)
    torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX, group=group)
    return [bool(flag) for flag in flags.tolist()]
