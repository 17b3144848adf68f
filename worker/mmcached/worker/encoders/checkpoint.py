"""Encodes images and slices of clips with the towers of a local checkpoint.

One item at a time, so that an output is bit-identical to that of Transformers for the item alone, with the same dtype
and kind of device; on a CPU also with the same number of threads, among which sums are divided. For a whole clip
Transformers gives the same except for rounding: larger matrix products may add in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmcached.cache.checkpoints.checkpoint import FIELD, PACKAGES, Checkpoint
from mmcached.cache.checkpoints.counting import Grid
from mmcached.cache.checkpoints.frames import FrameGrid, WholeClip
from mmcached.cache.output_names import output_name
from mmcached.cache.store_keys import EMBEDDINGS, GRID, TOKENS
from mmcached.client.device.devices import device_of
from mmcached.wire.errors import ConfigError, InvalidRequest
from mmcached.wire.messages.parts import EncoderForm, TensorForm
from mmcached.wire.model_config import EncoderConfig
from mmcached.wire.vocabulary import Modality
from mmcached.worker.encoders.computing import autocast_row, computing_rows, threads_row
from mmcached.worker.encoders.encoder import MeasuredForm, Outputs, tensor_of
from mmcached.worker.encoders.examples import Record, examples
from mmcached.worker.encoders.pixels import normalised
from mmcached.worker.encoders.tower import ask, load_tower
from mmcached.worker.encoders.weights import Weights


class CheckpointEncoder:
    """Towers on one device, for records of the frontend's `checkpoint_processor` and `checkpoint_slices`.

    Args:
        max_pinned_bytes: Limit of the pinned memory of items, for CUDA.
        is_for_prompts: Whether outputs have all that a language model wants of an item: for positions the grid of its
            patches, if the tower takes it; and tokens of text between its tiles, with -1 for embeddings.

    Raises:
        ConfigError: See `load_tower`.
    """

    batching = "alone"
    """Which inputs the tower takes together: the row `batching` of an output's name."""

    def __init__(
        self, config: EncoderConfig, device: torch.device, *, max_pinned_bytes: int = 0, is_for_prompts: bool = False
    ) -> None:
        self._checkpoint = Checkpoint.open(config.folder, is_for_prompts=is_for_prompts)
        self._transfers = device_of(str(device), max_pinned_bytes=max_pinned_bytes)
        self._model, self._families = load_tower(self._checkpoint, config.dtype, device)
        self._dtype = self._model.dtype
        countings = self._checkpoint.countings.values()
        self._adds_grid = is_for_prompts and all(isinstance(each, (Grid, FrameGrid)) for each in countings)
        weights = Weights(self._model, frozenset.intersection(*(each.others for each in self._families.values())))
        self._rows: Mapping[str, Any] = {
            "host": "service",
            "weights": weights.digest,
            "model": {name: value for name, value in self._checkpoint.model.items() if name != "text_config"},
            "processor": None,  # the key of an item has its processor
            "code": GRID if self._adds_grid else None,  # else of the version of Transformers: a service runs no other
            "dtype": [str(self._dtype), autocast_row(device.type)],
            "attention": [str(getattr(each, "_attn_implementation", None)) for each in weights.configs],
            **computing_rows(device, PACKAGES),
            "threads": threads_row(device.type),
            **dict.fromkeys(("ranks", "compilation", "quantization", "adapters")),  # a service has none of them
            "batching": self.batching,
        }
        self._fingerprint = output_name(self._rows)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def rows(self) -> Mapping[str, Any]:
        return self._rows

    def encode(self, record: Mapping[str, Any], num_embeds: int) -> Outputs:
        modality = self._checkpoint.modality_of(record)
        tensors = self._loaded(self._checked(record, modality, num_embeds), modality)
        tokens = tensors.pop(TOKENS, None)
        outputs = ask(self._model, self._families[modality], tensors)
        if tokens is not None:
            return self._with_text(outputs[EMBEDDINGS], tokens)
        return {**outputs, GRID: [*tensors.values()][-1]} if self._adds_grid else outputs

    def _checked(self, record: Record, modality: Modality, num_embeds: int) -> dict[str, torch.Tensor]:
        """Return the tensors of an item that its tower takes; raises `InvalidRequest`, see `encode`."""
        given = {name: tensor_of(record, name) for name in self._checkpoint.countings[modality].inputs}
        found = self._checkpoint.num_embeds(modality, given)  # on the host: no wait for a device
        if found != num_embeds:
            raise InvalidRequest("num_embeds", num_embeds, f"the item has {found} embeddings")
        return given

    def _loaded(self, given: Record, modality: Modality) -> dict[str, torch.Tensor]:
        """Return tensors in the tower's dtype, on its device."""
        tensors = {}
        for name, loaded in zip(given, self._transfers.load(list(given.values())), strict=True):
            prepared = self._prepared(loaded, modality)
            tensors[name] = prepared.clone() if prepared is given[name] else prepared  # keep the record
        return tensors

    def _with_text(self, embeddings: torch.Tensor, tokens: torch.Tensor) -> Outputs:
        """Return the outputs of an item with text: rows of zeros among its embeddings, and the tokens there."""
        is_placeholder = tokens < 0
        if len(embeddings) != int(is_placeholder.sum()):
            raise InvalidRequest(TOKENS, f"{len(tokens)} tokens", f"must have {len(embeddings)} placeholders")
        rows = embeddings.new_zeros(len(tokens), embeddings.shape[1])
        rows[is_placeholder] = embeddings
        return {EMBEDDINGS: rows, TOKENS: tokens}

    def measure(self) -> MeasuredForm:
        """Encode two small items of different shape of each modality.

        Raises `ConfigError` if a processor's output does not fit its tower.
        """
        inputs: dict[Modality, list[TensorForm]] = {}
        seen: list[tuple[Outputs, int]] = []
        for modality in self._checkpoint.countings:
            records = examples(self._checkpoint, modality)
            inputs[modality] = _forms(records)
            seen += [self._look(modality, record) for record in records]
        form = EncoderForm(self._checkpoint.architecture, inputs, _forms([outputs for outputs, _ in seen]))
        sizes = [-(-sum(tensor.nbytes for tensor in outputs.values()) // count) for outputs, count in seen]
        return MeasuredForm(form, max(sizes))

    def _look(self, modality: Modality, record: Record) -> tuple[Outputs, int]:
        try:
            num_embeds = self._checkpoint.num_embeds(modality, record)
            outputs = self.encode(record, num_embeds)
        except (InvalidRequest, KeyError, RuntimeError, ValueError, TypeError) as error:
            reason = f"the output of its processor does not fit its tower: {type(error).__name__}: {str(error)[:200]}"
            raise ConfigError(FIELD, str(self._checkpoint.path), reason) from error
        first = next(iter(outputs.values()))
        if num_embeds != (len(first) if first.ndim > 1 else 1):
            reason = f"expected {num_embeds} embeddings, its tower returned {tuple(first.shape)}"
            raise ConfigError(FIELD, str(self._checkpoint.path), reason)
        return outputs, num_embeds

    def _prepared(self, tensor: torch.Tensor, modality: Modality) -> torch.Tensor:
        """Return a tensor of an item in the tower's dtype; the same tensor if nothing has to be changed."""
        counting = self._checkpoint.countings[modality]
        if tensor.dtype == torch.uint8 and isinstance(counting, (FrameGrid, WholeClip)):
            tensor = normalised(tensor, counting, self._checkpoint.processors[modality])
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


def _forms(seen: Sequence[Record]) -> list[TensorForm]:
    return [_form(name, [each[name] for each in seen]) for name in seen[0]]


def _form(name: str, seen: Sequence[torch.Tensor]) -> TensorForm:
    sizes = zip(*(tensor.shape for tensor in seen), strict=True)
    shape = tuple(each[0] if len(set(each)) == 1 else -1 for each in sizes)
    return TensorForm(name, str(seen[0].dtype).removeprefix("torch."), shape)
