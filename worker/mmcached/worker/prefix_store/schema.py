"""What the value of a key must look like. Declared, never guessed from a shape that happens to fit.

    kind           value of a step                                 kept
    per_token      tensor (rows of the step, *shape)               row by row, by content
    per_request    tensor (chunks of the step, *shape)             the last one of each request, until its release
    list           list, one element for each chunk                the same
    global         one tensor or plain value for all               the last one

Values that are kept whole belong to the request that made them: none is ever found by another one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from mmcached.wire.errors import ConfigError, InvalidRequest

KeyKind = Literal["per_token", "per_request", "global", "list"]
CopyPolicy = Literal["at_once", "deferred"]


@dataclass(frozen=True, slots=True)
class KeySpec:
    """One key.

    Attributes:
        shape: of one token's row, one request's value, the global tensor or one tensor of a list; () is one number.
            None: any; only for "global" and "list", whose values need not be tensors then.
        dtype: of the same; None just where `shape` is None.
        copy: when the rows of a "per_token" key go to host memory: in the step that makes them; or, once for many
            steps, when their block is sealed and full, their request is released, somebody reads them or too many are
            on the device. It never changes what is found.

    Raises:
        ConfigError: no name, or a shape or dtype that cannot be.
    """

    name: str
    kind: KeyKind
    shape: tuple[int, ...] | None
    dtype: torch.dtype | None
    copy: CopyPolicy = "at_once"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError("name", repr(self.name), "a key has a name")
        if self.kind not in get_args(KeyKind):
            raise ConfigError(f"{self.name}.kind", repr(self.kind), f"one of {', '.join(get_args(KeyKind))}")
        if self.shape is not None and (
            not isinstance(self.shape, tuple) or any(type(size) is not int or size < 1 for size in self.shape)
        ):
            raise ConfigError(f"{self.name}.shape", repr(self.shape), "a tuple of integers, each at least 1")
        if self.dtype is not None and not isinstance(self.dtype, torch.dtype):
            raise ConfigError(f"{self.name}.dtype", repr(self.dtype), "a torch.dtype")
        is_open = self.shape is None
        if is_open != (self.dtype is None) or (is_open and self.kind in ("per_token", "per_request")):
            limit = f"shape and dtype must be declared for a {self.kind} key, or both left open if global or list"
            raise ConfigError(self.name, f"{self.shape} {self.dtype}", limit)
        if self.copy not in get_args(CopyPolicy) or (self.copy == "deferred" and self.kind != "per_token"):
            raise ConfigError(f"{self.name}.copy", repr(self.copy), "at_once; or deferred, of a per_token key")

    def has_rows_of(self, other: KeySpec | None) -> bool:
        """Return whether rows and values kept for another declaration are right for this one."""
        return other is not None and replace(other, copy=self.copy) == self

    @property
    def nbytes(self) -> int:
        """Bytes of one row or value; 0 if any is allowed."""
        return 0 if self.shape is None or self.dtype is None else math.prod(self.shape) * self.dtype.itemsize

    def check_stacked(self, value: object, num: int) -> torch.Tensor:
        """Return `value` if it is a tensor `(num, *shape)`. Never broadcasts, converts or cuts.

        Raises:
            InvalidRequest: names what it is instead.
        """
        return self._check_tensor(value, (num, *(self.shape or ())))

    def check_whole(self, value: object) -> object:
        """Return `value` if it may be one global value or one element of a list.

        Raises:
            InvalidRequest: names what it is instead.
        """
        return value if self.shape is None else self._check_tensor(value, self.shape)

    def check_list(self, value: object, num: int) -> list[object]:
        """Return `value` if it is a list of `num` elements; these may still be wrong.

        Raises:
            InvalidRequest: names what it is instead.
        """
        if not isinstance(value, list) or len(value) != num:
            found = f"{len(value)} elements" if isinstance(value, list) else type(value).__name__
            raise InvalidRequest(self.name, found, f"must be a list with an element for each of {num} chunks")
        return value

    def _check_tensor(self, value: object, shape: tuple[int, ...]) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise InvalidRequest(self.name, type(value).__name__, f"must be a tensor {shape}")
        if value.dtype != self.dtype:
            raise InvalidRequest(f"{self.name}.dtype", str(value.dtype), f"was declared as {self.dtype}")
        if value.shape != shape:
            raise InvalidRequest(f"{self.name}.shape", str(tuple(value.shape)), f"must be {shape}")
        return value
