"""Nested tensors, the data of one field of an item, without importing the library that they come from.

    NestedTensors = array | int | float | bool | str | bytes | None | list of NestedTensors | dict of NestedTensors

An *array* is any object with `nbytes`, `dtype` and `shape`: a numpy array or a torch tensor. Imports neither library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard


class Array(Protocol):
    """The part of numpy arrays and torch tensors that the caches use."""

    @property
    def nbytes(self) -> int: ...
    @property
    def dtype(self) -> Any: ...
    @property
    def shape(self) -> Any: ...


Scalar = int | float | bool | str | bytes | None
NestedTensors: TypeAlias = "Array | Scalar | Sequence[NestedTensors] | Mapping[str, NestedTensors]"


def is_array(value: object) -> TypeGuard[Array]:
    # Checked on the type: a check against a protocol looks at every attribute of the value, which costs more than a
    # lookup.
    kind = type(value)
    return hasattr(kind, "nbytes") and hasattr(kind, "dtype") and hasattr(kind, "shape")


def leaves(value: object) -> Iterator[object]:
    """Yield every leaf, depth first: values that are neither mappings, lists nor tuples."""
    if isinstance(value, Mapping):
        for child in value.values():
            yield from leaves(child)
    elif isinstance(value, list | tuple):
        for child in value:
            yield from leaves(child)
    else:
        yield value


def plain(value: object) -> Any:
    """Return the value with only dicts and lists around the same leaves, the form that the codec takes."""
    if isinstance(value, Mapping):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [plain(child) for child in value]
    return value


def nested_equal(a: object, b: object) -> bool:
    """Return whether two nested tensors have the same form, dtypes, shapes and elements.

    A list equals a tuple of the same members (a wire does not tell them apart); numbers of different types differ.
    """
    if is_array(a) or is_array(b):
        return is_array(a) and is_array(b) and _arrays_equal(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(nested_equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(nested_equal, a, b))
    return type(a) is type(b) and a == b


def _arrays_equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape):
        return False
    return bool((a == b).all())
