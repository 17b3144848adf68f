"""Lets the ranks of an engine agree on what they load, because they encode together: all load an item, or none does.

    first rank, or scheduler ──token of a lease──> every rank ──loads that record──> one has failed? then all encode

Every function is collective: all ranks of a group call the same ones in the same order. A group communicates over the
host, not over its devices. A rank that has died is an error of torch in the others, which ends their engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def from_first(value: Any, group: Any) -> Any:
    """Return the value of the group's first rank; those of other ranks are ignored."""
    values = [value]
    torch.distributed.broadcast_object_list(values, group_src=0, group=group)
    return values[0]


def of_all(value: Any, group: Any) -> list[Any]:
    """Return the values of all ranks, in their order."""
    values: list[Any] = [None] * torch.distributed.get_world_size(group)
    torch.distributed.all_gather_object(values, value, group=group)
    return values


def failed_in_any(failures: list[bool], group: Any) -> list[bool]:
    """Return for each load whether it has failed in any rank; the lists of all ranks have one length."""
    flags = torch.tensor(failures, dtype=torch.uint8)
    torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX, group=group)
    return [bool(flag) for flag in flags.tolist()]


def merged(values: Iterable[Any]) -> Any:
    """Return the value that all ranks have; a list of all if they differ, None if there is none."""
    found = list(values)
    if not found:
        return None
    return found[0] if all(value == found[0] for value in found) else found
