"""Says what a worker asks of an encoder, whatever model is behind it.

Knows nothing of caches, plans or requests. An encoder is given one item at a time, so that what it gives never depends
on what else is encoded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import EncoderForm, TensorForm

Outputs = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Measured:
    """What an encoder has shown of itself on a small item.

    Attributes:
        form: the tensors that it takes and gives.
        embedding_bytes: of all outputs together, for each of the item's embeddings; rounded up.
    """

    form: EncoderForm
    embedding_bytes: int


class Encoder(Protocol):
    """One model's encoder, on one device."""

    @property
    def fingerprint(self) -> str:
        """32 hex digits of all that outputs depend on beside the item."""

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        """Return the outputs of one item, on the encoder's device.

        Args:
            record: of the item; its tensors are read during the call and never written.
            num_embeds: embeddings that the item was said to have.
        Raises:
            InvalidRequest: the record does not fit; names the field.
        """

    def measure(self) -> Measured:
        """Encode a small item; changes nothing."""


def tensor_of(record: Mapping[str, Any], name: str) -> torch.Tensor:
    """Return a tensor of an item's record.

    Raises:
        InvalidRequest: it is not there, or is none.
    """
    value = record.get(name)
    if not isinstance(value, torch.Tensor):
        raise InvalidRequest(name, type(value).__name__, "must be a tensor of an item's record")
    return value


def form_of(name: str, tensor: torch.Tensor, varying: Sequence[int] = ()) -> TensorForm:
    """Return how a tensor of this name looks.

    Args:
        varying: the dimensions that differ from item to item.
    """
    shape = tuple(-1 if place in varying else size for place, size in enumerate(tensor.shape))
    return TensorForm(name, str(tensor.dtype).removeprefix("torch."), shape)


def outputs_in(record: Mapping[str, Any], form: EncoderForm, num_embeds: int) -> Outputs | None:
    """Return the outputs of a record in the encoder's order; None if names, dtypes or shapes are not those of an item.

    Args:
        num_embeds: embeddings of the item: the size that differs from item to item.
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
    numbers = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch adds up no float8
    # A sum is the fastest pass, and not finite if a number is not; of finite numbers it may overflow.
    return math.isfinite(numbers.sum().item()) or bool(numbers.isfinite().all())


def _fits(value: Any, form: TensorForm, num_embeds: int) -> bool:
    shape = tuple(num_embeds if size < 0 else size for size in form.shape)
    return isinstance(value, torch.Tensor) and form_of("", value) == TensorForm("", form.dtype, shape)
