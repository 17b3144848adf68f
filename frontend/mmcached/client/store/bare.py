"""Stores a bare tensor as a record: a dict whose only name is `BARE`.

`as_record` refuses that name in a caller's dict, so the name identifies a record that was put as a bare tensor.

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
    """A numpy array or a CPU torch tensor."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> Any: ...


def as_record(value: Any) -> Record:
    """Return the record for a value that a caller puts: a dict, or a bare tensor.

    Raises:
        InvalidRequest: The value is neither, or is a dict with the reserved name.
    """
    if type(value) is not dict:
        if is_tensor(value):
            return {BARE: value}
        raise InvalidRequest("record", type(value).__name__, "a record is a dict, or one tensor or array")
    if BARE in value:
        raise InvalidRequest(f"$.{BARE}", "a dict with this name", "the name is reserved: put the tensor itself")
    return value


def from_record(record: Record) -> Any:
    """Return the tensor of a record that was put as a bare tensor, else the record itself."""
    return record.get(BARE, record)
