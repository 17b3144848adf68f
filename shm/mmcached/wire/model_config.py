"""The part of the configuration that describes the model and the encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model behind `generate`: the reference model, or the language model of a local checkpoint ("hf").

    Most fields are sizes of the reference model; `cache.checkpoints.language` has those of either kind.

    Attributes:
        path: Folder of the checkpoint.
        dtype: Dtype of a checkpoint's computation; "auto" for the checkpoint's.
        mode: "aligned": a checkpoint computes each sequence alone, in fixed chunks, so that results do not depend on
            caches and on other requests; "packed": it computes all tokens of a step at once.
        chunk_tokens: In the mode "aligned" chunks of a checkpoint's prompts begin at multiples of it.
        seed: The reference model's, from which all its weights are generated.
    """

    kind: Literal["reference", "hf"] = "reference"
    path: str = ""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    mode: Literal["aligned", "packed"] = "aligned"
    chunk_tokens: int = 128
    seed: int = 0
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    encoder_width: int = 256
    encoder_layers: int = 2
    patch_size: int = 32
    max_patches_per_image: int = 64
    audio_frame: int = 640
    """Samples that become one embedding, at 16,000 a second."""
    audio_window: int = 50
    """Audio frames (`audio_frame` samples each) in one slice of a sound."""
    num_layer_outputs: int = 0
    """Number of first layers whose rows are returned beside those of the last layer."""
    row_modules: str = ""
    """Modules of a checkpoint's layers whose rows are returned too: `layers.3.mlp`, with commas between names."""

    @property
    def modules_by_key(self) -> dict[str, str]:
        """Modules whose rows are returned beside those of the last layer, by the name of their tensor."""
        layers = {f"hidden_states.layer_{layer}": f"layers.{layer}" for layer in range(self.num_layer_outputs)}
        return layers | {name: name for each in self.row_modules.split(",") if (name := each.strip())}

    @property
    def row_keys(self) -> tuple[str, ...]:
        """Names of the tensors of which the model returns a row per token."""
        return ("hidden_states", *self.modules_by_key)


class EncoderConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The encoder of items: the reference model, or the towers of a local checkpoint of Transformers ("hf").

    Attributes:
        path: Folder of the checkpoint.
        dtype: Dtype of the computation; "auto" for the checkpoint's.
        device: Device of the tower; "auto" for the workers'.
        ray_address: HOST:PORT, or "auto", of a Ray cluster whose actors encode instead of the workers; "" for none.
        ray_namespace: Ray namespace of those actors.
        caches_tiles: Encode each tile of a picture alone, and keep its output in the store: a tile is encoded once,
            also if the rest of its picture is new.
    """

    kind: Literal["reference", "hf"] = "reference"
    path: str = ""
    dtype: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    device: str = "auto"
    ray_address: str = ""
    ray_namespace: str = "mmcached"
    caches_tiles: bool = False

    @property
    def folder(self) -> Path:
        return Path(self.path)
