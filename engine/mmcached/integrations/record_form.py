"""Describes the tensors that a model expects in a record, and checks records against the description.

    names of the parts ──> for each part: sizes of a row, dtype, number of rows ──> the reason of a mismatch, or None

A program of the same user can put any record under any key. A tensor of another width, rank or dtype ends some host
programs, and NaN spreads to other requests; a record that does not match is treated as a miss. Imports torch only to
check a record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PartForm:
    """The shape and dtype of one tensor, `(rows, *trailing)`.

    Attributes:
        trailing: Sizes of all dimensions but the first; None for a dimension of any size.
        dtype: Dtype of the elements.
        rows: Size of the first dimension; None for any number of rows.
    """

    trailing: tuple[int | None, ...]
    dtype: torch.dtype
    rows: int | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> PartForm:
        """Return the form of a tensor of at least one dimension."""
        return cls(tuple(tensor.shape[1:]), tensor.dtype, tensor.shape[0])

    def check(self, tensor: object) -> str | None:
        """Return why a tensor in host memory has another form or is not finite; None if it fits."""
        import torch

        if not isinstance(tensor, torch.Tensor):
            return f"{type(tensor).__name__} instead of a tensor"
        shape, wanted = tuple(tensor.shape), (self.rows, *self.trailing)
        if len(shape) != len(wanted) or any(
            size not in (None, found) for size, found in zip(wanted, shape, strict=True)
        ):
            return f"shape {list(shape)} instead of {['any' if size is None else size for size in wanted]}"
        if tensor.dtype != self.dtype:
            return f"dtype {tensor.dtype} instead of {self.dtype}"
        return None if _is_finite(tensor) else "elements that are not finite"


@dataclass(frozen=True, slots=True)
class RecordForm:
    """The expected parts of a record, checked before its tensors are given to a model.

    Attributes:
        parts: By name: the form of a tensor; a tuple of forms for a list of as many tensors; None for a part whose
            value is None. A record has exactly these names.
    """

    parts: Mapping[str, PartForm | tuple[PartForm, ...] | None]

    def check(self, record: object) -> str | None:
        """Return why a record has another form, naming the first wrong part; None if it fits.

        The tensors lie in host memory, such as the store's. Reading them once for NaN and infinities takes about as
        long as copying them.
        """
        if not isinstance(record, Mapping):
            return f"{type(record).__name__} instead of a record"
        if record.keys() != self.parts.keys():
            return f"parts {sorted(map(str, record))} instead of {sorted(self.parts)}"
        for name, form in self.parts.items():
            if (reason := _check_part(form, record[name])) is not None:
                return f"{name}: {reason}"
        return None


def _check_part(form: PartForm | tuple[PartForm, ...] | None, value: object) -> str | None:
    if form is None:
        return None if value is None else f"{type(value).__name__} instead of None"
    if isinstance(form, PartForm):
        return form.check(value)
    if not isinstance(value, list | tuple) or len(value) != len(form):
        return f"no list of {len(form)} tensors"
    return next((reason for each, tensor in zip(form, value, strict=True) if (reason := each.check(tensor))), None)


def _is_finite(tensor: torch.Tensor) -> bool:
    """Return whether no element is NaN or infinite; tensors that are not floating point are finite."""
    if not tensor.dtype.is_floating_point:
        return True
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()  # torch cannot sum float8
    # A sum is not finite if one element is not, and it is the fastest pass. It may overflow although all elements are
    # finite; then the extremes decide, which are NaN if one element is.
    if math.isfinite(tensor.sum().item()):
        return True
    return tensor.numel() == 0 or all(math.isfinite(extreme.item()) for extreme in tensor.aminmax())
