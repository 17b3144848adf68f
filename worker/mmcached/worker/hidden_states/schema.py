"""Declares shape and dtype of a key's rows; they are never inferred from a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mmcached.wire.errors import ConfigError, InvalidRequest


@dataclass(frozen=True, slots=True)
class KeySpec:
    """Key: a named tensor with one row of `shape` per token; () is one number.

    Raises `ConfigError` for an invalid name, shape or dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError("name", repr(self.name), "a non-empty string")
        if not isinstance(self.shape, tuple) or any(type(size) is not int or size < 1 for size in self.shape):
            raise ConfigError(f"{self.name}.shape", repr(self.shape), "a tuple of integers, each at least 1")
        if not isinstance(self.dtype, torch.dtype):
            raise ConfigError(f"{self.name}.dtype", repr(self.dtype), "a torch.dtype")

    @property
    def row_nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def check_rows(self, value: object, num_rows: int | None = None, *, field: str = "") -> torch.Tensor:
        """Return `value` if it is a tensor `(num_rows, *shape)`; never broadcasts, converts or truncates.

        Raises `InvalidRequest` with `field` (default: the key) and the invalid type, dtype or shape.
        """
        field = field or self.name
        if not isinstance(value, torch.Tensor):
            raise InvalidRequest(field, type(value).__name__, f"must be a tensor {self._shape_of(num_rows)}")
        if value.dtype != self.dtype:
            raise InvalidRequest(f"{field}.dtype", str(value.dtype), f"must be {self.dtype}")
        shape = value.shape
        if not shape or shape != (shape[0] if num_rows is None else num_rows, *self.shape):
            raise InvalidRequest(f"{field}.shape", str(tuple(shape)), f"must be {self._shape_of(num_rows)}")
        return value

    def _shape_of(self, num_rows: int | None) -> str:
        return f"({', '.join(map(str, ('tokens' if num_rows is None else num_rows, *self.shape)))})"
