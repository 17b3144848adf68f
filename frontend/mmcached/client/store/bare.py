"""Keeps a bare tensor as a record: a dict whose only name is `BARE`.

No caller can make such a dict: `as_record` refuses the name. So a tensor that was put bare is known by it.

>>> import numpy
>>> as_record(numpy.ones(2)), from_record({"__tensor__": 1}), from_record({"x": 1})
({'__tensor__': array([1., 1.])}, 1, {'x': 1})
"""

from __future__ import annotations

from typing import Any, Protocol

from mmcached.shm.store.codec import Record
from mmcached.shm.store.tensor_bytes import is_tensor
from mmcached.wire.errors import InvalidRequest

BARE = "__tensor__"
"""The reserved name in the record of a bare tensor."""


class TensorLike(Protocol):
    """An array of numpy or a CPU tensor of torch."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


def as_record(value: Any) -> Record:
    """Return the record of what a caller puts: a dict, or a bare tensor.

    Raises:
        InvalidRequest: it is neither, or a dict with the reserved name.
    """
    if type(value) is not dict:
        if is_tensor(value):
            return {BARE: value}
        raise InvalidRequest("record", type(value).__name__, "a record is a dict, or one tensor or array")
    if BARE in value:
        raise InvalidRequest(f"$.{BARE}", "a dict with this name", "the name is reserved: put the tensor itself")
    return value


def from_record(record: Record) -> Any:
    """Return the bare tensor that was put, or the record."""
    return record.get(BARE, record)
