"""A tiny checkpoint for random worlds: other weights in each weight epoch, and its results without caches."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import transformers

from mmcached.cache.checkpoints.language import Language
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.worker import RunChunk
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import END_TOKEN_ID, VOCABULARY_SIZE
from mmcached.worker.language.decoder import CheckpointDecoder
from mmcached.worker.model.batch import pack
from tests.world.knobs import MAX_MODEL_LEN, Knobs

CPU = torch.device("cpu")


def write_tiny(folder: Path, *, num_layers: int, hidden_size: int) -> None:
    """Write a checkpoint with the vocabulary of the reference model, and with a sliding window in its first layer."""
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        use_sliding_window=True,
        sliding_window=7,
        layer_types=["sliding_attention", *["full_attention"] * (num_layers - 1)],
        eos_token_id=END_TOKEN_ID,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)


def with_checkpoint(knobs: Knobs, folder: Path) -> ServiceConfig:
    """Return the configuration of a world with a checkpoint instead of the reference model, in the mode `aligned`.

    Its chunks are computed whole, so a step's budget is at least one.
    """
    config = knobs.config()
    chunk_tokens = config.block_size * random.Random(f"{knobs.seed} chunks").choice((1, 2, 3))
    model: ModelConfig = msgspec.structs.replace(
        config.model,
        kind="hf",
        path=str(folder / str(knobs.num_layers)),
        chunk_tokens=chunk_tokens,
        row_modules="layers.0.mlp.up_proj",
    )
    return msgspec.structs.replace(
        config,
        model=model,
        max_num_batched_tokens=max(config.max_num_batched_tokens, chunk_tokens),
        long_prefill_token_threshold=0,
        disable_chunked_mm_input=False,
    )


def use_weights(decoder: Any, epoch: int) -> None:
    """Give a decoder the weights of an epoch; those of epoch 0 are the checkpoint's."""
    model = decoder._model
    if not hasattr(decoder, "first_weights"):
        decoder.first_weights = {name: values.clone() for name, values in model.named_parameters()}
    noise = torch.Generator().manual_seed(epoch)
    for name, values in model.named_parameters():
        first = decoder.first_weights[name]
        values.copy_(first + 0.2 * torch.randn(first.shape, generator=noise) if epoch else first)


class PlainCheckpoint:
    """The worker's own decoder, which computes each sequence from nothing, alone."""

    def __init__(self, config: ServiceConfig, epoch: int) -> None:
        self._decoder = CheckpointDecoder(config, CPU)
        use_weights(self._decoder, epoch)
        self._block_size = config.block_size
        self._row_keys = Language.of(config).row_keys

    def rows(
        self, token_ids: Sequence[int], replaced: Mapping[int, np.ndarray], *, num_prompt_tokens: int
    ) -> dict[str, np.ndarray]:
        """Return of each key the rows of all tokens, `(num_tokens, width)`.

        Args:
            replaced: by position, what stands there instead of the token.
        """
        block_ids = range(1, 1 + -(-MAX_MODEL_LEN // self._block_size))
        chunk = RunChunk(0, list(token_ids), 0, block_ids, [], False, [], 0, 0, [], num_prompt_tokens=num_prompt_tokens)
        batch = pack([chunk], self._block_size, CPU)
        embeddings = self._decoder.embed(batch.token_ids)
        for position, row in replaced.items():
            embeddings[position] = torch.from_numpy(row).to(embeddings.dtype)
        layers: list[torch.Tensor] = []
        hidden = self._decoder.forward(embeddings, batch, self._decoder.pool, layers_out=layers)
        return {key: rows.numpy() for key, rows in zip(self._row_keys, [hidden, *layers], strict=True)}

    def next_tokens(self, hidden_states: np.ndarray) -> list[int]:
        rows = torch.split(torch.from_numpy(hidden_states), 1)
        return [int(self._decoder.logits(row)[0].argmax()) for row in rows]
