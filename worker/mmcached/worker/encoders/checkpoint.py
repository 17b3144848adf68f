"""Encodes pictures with the vision part of a local checkpoint.

One picture at a time, so that an output has the bits that Transformers gives for that picture alone, in the same dtype
on the same kind of device; on a CPU also with as many threads, which divide sums among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmcached.cache.checkpoints.checkpoint import FIELD, Checkpoint, package_versions
from mmcached.cache.fingerprints import fingerprint
from mmcached.wire.config import EncoderConfig
from mmcached.wire.errors import ConfigError, InvalidRequest
from mmcached.wire.messages.parts import EncoderForm, TensorForm
from mmcached.worker.encoders.encoder import Measured, Outputs, tensor_of
from mmcached.worker.encoders.tower import ask, load_tower
from mmcached.worker.encoders.weights import Weights, numeric_settings

_SIZES = ((64, 64), (384, 192))
"""Of the pictures that are looked at; where their tensors differ, those of others do."""


class CheckpointEncoder:
    """A tower on one device, for records as `mmcached.frontend.processing.checkpoint_processor` makes them.

    Raises:
        ConfigError: see `load_tower`.
    """

    def __init__(self, config: EncoderConfig, device: torch.device) -> None:
        self._checkpoint = Checkpoint.open(config.folder)
        self._device = device
        self._model, self._family = load_tower(self._checkpoint, config.dtype, device)
        self._dtype = self._model.dtype
        weights = Weights(self._model, self._family.others)
        attention = [str(getattr(each, "_attn_implementation", None)) for each in weights.configs]
        self._fingerprint = fingerprint(
            {
                "kind": "hf",
                "weights": weights.digest,
                "config": {name: value for name, value in self._checkpoint.model.items() if name != "text_config"},
                "dtype": str(self._dtype),
                "attention": attention,
                "settings": numeric_settings(device),
                "threads": torch.get_num_threads() if device.type == "cpu" else 0,
                "versions": package_versions(),
            }
        )

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        tensors = {name: self._placed(tensor_of(record, name)) for name in self._checkpoint.counting.inputs}
        found = self._checkpoint.num_embeds(tensors)
        if found != num_embeds:
            raise InvalidRequest("num_embeds", num_embeds, f"the item has {found} embeddings")
        return ask(self._model, self._family, tensors)

    def measure(self) -> Measured:
        """Process and encode two small pictures of different form.

        Raises:
            ConfigError: processor and tower do not go together.
        """
        seen = [self._look(size) for size in _SIZES]
        records, outputs, counts = zip(*seen, strict=True)
        form = EncoderForm(self._checkpoint.architecture, _forms(*records), _forms(*outputs))
        num_bytes = sum(tensor.nbytes for tensor in outputs[0].values())
        return Measured(form, -(-num_bytes // counts[0]))

    def _look(self, size: tuple[int, int]) -> tuple[Mapping[str, torch.Tensor], Outputs, int]:
        from PIL import Image

        from mmcached.pictures.processor import PictureProcessor

        made = PictureProcessor(self._checkpoint.path).tensors(Image.new("RGB", size, "gray"))
        try:
            record = {name: torch.from_numpy(made[name]) for name in self._checkpoint.counting.inputs}
            num_embeds = self._checkpoint.num_embeds(record)
            outputs = self.encode(record, num_embeds)
        except (InvalidRequest, KeyError, RuntimeError, ValueError, TypeError) as error:
            reason = f"its processor and its tower do not go together: {type(error).__name__}: {str(error)[:200]}"
            raise ConfigError(FIELD, str(self._checkpoint.path), reason) from error
        first = next(iter(outputs.values()))
        if num_embeds != (len(first) if first.ndim > 1 else 1):
            reason = f"{num_embeds} embeddings are expected, its tower gives {tuple(first.shape)}"
            raise ConfigError(FIELD, str(self._checkpoint.path), reason)
        return record, outputs, num_embeds

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device, numbers of a picture in the tower's dtype; a copy: the record is not ours."""
        dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
        return tensor.to(self._device, dtype, copy=True)


def _forms(some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> list[TensorForm]:
    return [_form(name, some[name], others[name]) for name in some]


def _form(name: str, one: torch.Tensor, other: torch.Tensor) -> TensorForm:
    shape = tuple(size if size == another else -1 for size, another in zip(one.shape, other.shape, strict=True))
    return TensorForm(name, str(one.dtype).removeprefix("torch."), shape)
