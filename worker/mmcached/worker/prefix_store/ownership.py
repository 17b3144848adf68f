"""Copies of values that share nothing with what they are copies of."""

from __future__ import annotations

import torch

from mmcached.wire.errors import InvalidRequest

_PLAIN = (str, int, float, bool, bytes, type(None))
_PLAIN_NBYTES = 64


def owned(value: object, field: str, *, on_cpu: bool) -> tuple[object, int]:
    """Return a copy of a value and the bytes that it takes: tensors, and plain values, lists and dicts of them.

    Args:
        on_cpu: wait for the tensors' device and have them on the CPU. Otherwise they stay where they are, and nothing
            is waited for.

    Raises:
        InvalidRequest: names `field` and the type that cannot be copied; or it contains itself.
    """
    try:
        return _owned(value, field, on_cpu=on_cpu)
    except RecursionError:
        limit = "must not be nested so deeply, nor contain itself"
        raise InvalidRequest(field, type(value).__name__, limit) from None


def _owned(value: object, field: str, *, on_cpu: bool) -> tuple[object, int]:
    if isinstance(value, torch.Tensor):
        rows = value.detach()
        copy = rows.to("cpu", copy=True).contiguous() if on_cpu else rows.clone(memory_format=torch.contiguous_format)
        return copy, copy.nbytes
    if isinstance(value, _PLAIN):
        return value, _PLAIN_NBYTES + (len(value) if isinstance(value, str | bytes) else 0)
    if isinstance(value, list | tuple):
        parts = [_owned(each, field, on_cpu=on_cpu) for each in value]
        return [part for part, _ in parts], _PLAIN_NBYTES + sum(nbytes for _, nbytes in parts)
    if isinstance(value, dict):
        named = {name: _owned(each, field, on_cpu=on_cpu) for name, each in value.items()}
        return {name: part for name, (part, _) in named.items()}, _PLAIN_NBYTES + sum(n for _, n in named.values())
    raise InvalidRequest(field, type(value).__name__, "must consist of tensors, plain values, lists and dicts")
