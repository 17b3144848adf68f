"""Describes the tensors that a model expects in a record, and checks a record against that before the model gets it.

    names of the parts ──> for each part: sizes of a row, dtype, number of rows ──> the reason of a mismatch, or None

A program of the same user can put any record under any key. A tensor of another width, rank or dtype ends some host
programs, and NaN spreads to other requests; a record that does not match is treated as a miss. Needs torch only when
a record is checked.
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
        trailing: sizes of all dimensions but the first; None for one that may have any size.
        dtype: of the elements.
        rows: size of the first dimension; None if any number of rows is right.
    """

    trailing: tuple[int | None, ...]
    dtype: torch.dtype
    rows: int | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> PartForm:
        """Return the form of a tensor of at least one dimension."""
        return cls(tuple(tensor.shape[1:]), tensor.dtype, tensor.shape[0])

    def check(self, tensor: object) -> str | None:
        """Return why a tensor in host memory is not of this form, or not finite; None if it is right."""
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
    """What a record must look like before its tensors are given to a model.

    Attributes:
        parts: for each name of the record the form of its tensor; a tuple of forms for a list of as many tensors;
            None for a part whose value is None. A record has these names and no other.
    """

    parts: Mapping[str, PartForm | tuple[PartForm, ...] | None]

    def check(self, record: object) -> str | None:
        """Return why a record is not of this form, by the first part that is wrong; None if it is right.

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
    """Return whether no element is NaN or infinite; numbers that are not floating point are finite."""
    if not tensor.dtype.is_floating_point:
        return True
    if tensor.dtype.itemsize == 1:
        tensor = tensor.float()  # torch adds up no float8
    # A sum is not finite if one element is not, and it is the fastest pass. It may overflow: then the extremes decide,
    # which are NaN if one element is.
    if math.isfinite(tensor.sum().item()):
        return True
    return tensor.numel() == 0 or all(math.isfinite(extreme.item()) for extreme in tensor.aminmax())
