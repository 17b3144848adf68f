"""Encoder protocol: the worker's interface to an encoder of any model.

An encoder is given one item at a time, so that its outputs never depend on other items.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import EncoderForm, TensorForm

Outputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class MeasuredForm:
    """Form of an encoder's outputs, measured on a small item; `embedding_bytes` is per embedding, rounded up."""

    form: EncoderForm
    embedding_bytes: int


class Encoder(Protocol):
    @property
    def fingerprint(self) -> str:
        """32 hex digits over all that outputs depend on, except the item."""

    @property
    def rows(self) -> Mapping[str, Any] | None:
        """What the fingerprint is made of, see `output_names.ROWS`; None if it is not a name of that table."""

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        """Return the outputs of one item, on the encoder's device; reads the record only during the call.

        Raises `InvalidRequest`, with the field, if the record is invalid or does not have `num_embeds` embeddings.
        """

    def measure(self) -> MeasuredForm: ...


@runtime_checkable
class TileEncoder(Encoder, Protocol):
    """An encoder that encodes each tile of an item alone.

    `encode` joins what `encode_tile` returns for each tile of `split`.
    """

    @property
    def tile_embeds(self) -> int:
        """Number of embeddings of any tile."""

    def split(self, record: Mapping[str, Any], num_embeds: int) -> list[dict[str, torch.Tensor]]:
        """Return the tensors of each tile of an item, in order, in the memory of its record; raises as `encode`."""

    def encode_tile(self, tile: Mapping[str, torch.Tensor]) -> Outputs:
        """Return the embeddings of one tile, on the encoder's device; raises `InvalidRequest` if it has none."""

    def join(self, record: Mapping[str, Any], tiles: Sequence[Outputs]) -> Outputs:
        """Return the outputs of an item, in memory of their own.

        Args:
            tiles: Outputs of its tiles, in order, in host memory or on the encoder's device.
        """


def tensor_of(record: Mapping[str, Any], name: str) -> torch.Tensor:
    """Return a tensor of an item's record; raises `InvalidRequest` if it is missing or not a tensor."""
    value = record.get(name)
    if not isinstance(value, torch.Tensor):
        raise InvalidRequest(name, type(value).__name__, "must be a tensor of an item's record")
    return value


def form_of(name: str, tensor: torch.Tensor, varying: Sequence[int] = ()) -> TensorForm:
    """Return name, dtype and shape of a tensor; the size of `varying` dimensions, which differ by item, is -1."""
    shape = tuple(-1 if place in varying else size for place, size in enumerate(tensor.shape))
    return TensorForm(name, str(tensor.dtype).removeprefix("torch."), shape)


def outputs_in(record: Mapping[str, Any], form: EncoderForm, num_embeds: int) -> Outputs | None:
    """Return the outputs of a record in the encoder's order; None if names, dtypes or shapes do not fit the item.

    `num_embeds` replaces the sizes that differ from item to item.
    """
    if record.keys() != {output.name for output in form.outputs}:
        return None
    outputs = {output.name: record[output.name] for output in form.outputs}
    fit = (_fits(outputs[output.name], output, num_embeds) for output in form.outputs)
    return outputs if all(fit) else None


def are_finite(outputs: Outputs) -> bool:
    """Return whether no tensor in host memory has a NaN or an infinite number."""
    return all(_is_finite(tensor) for tensor in outputs.values() if tensor.is_floating_point())


def _is_finite(tensor: torch.Tensor) -> bool:
    numbers = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch has no sum of float8
    # A sum is the fastest check: it is not finite if a number is not, but may overflow for finite numbers.
    return math.isfinite(numbers.sum().item()) or bool(numbers.isfinite().all())


def _fits(value: Any, form: TensorForm, num_embeds: int) -> bool:
    shape = tuple(num_embeds if size < 0 else size for size in form.shape)
    return isinstance(value, torch.Tensor) and form_of("", value) == TensorForm("", form.dtype, shape)
