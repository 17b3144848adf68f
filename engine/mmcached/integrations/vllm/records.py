"""Turns encoder outputs into records and back.

{"embeds": tensor}              (rows, width); DeepStack levels are part of the width
{"embeds": [tensor, …]}         an output of several tensors, each (rows, …)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def tensors_of(output: Any) -> list[torch.Tensor] | None:
    """Return the tensors of an encoder output; None for one of a kind that is not saved."""
    parts = list(output) if isinstance(output, tuple | list) else [output]
    for part in parts:
        if not hasattr(part, "untyped_storage"):
            return None
    return parts or None


def record_of(tensors: list[torch.Tensor]) -> dict[str, Any]:
    """Return the record of an output."""
    return {"embeds": tensors[0] if len(tensors) == 1 else tensors}


def output_of(record: Any) -> list[torch.Tensor] | None:
    """Return the tensors of a record; None if it is not a record of an output."""
    embeds = record.get("embeds") if isinstance(record, dict) else None
    return None if embeds is None else tensors_of(embeds)


def num_rows_of(record: Any) -> int | None:
    """Return how many rows a record has; None if it is not a record of an output, or has no one number of rows."""
    tensors = output_of(record)
    if not tensors:
        return None
    num_rows, *others = [shape[0] if len(shape := tensor.shape) > 1 else None for tensor in tensors]
    return num_rows if all(each == num_rows for each in others) else None


def width_of(record: Any) -> int:
    """Return the width of a record's rows; 0 for what is not a record of an output."""
    tensors = output_of(record)
    return int(tensors[0].shape[-1]) if tensors else 0
