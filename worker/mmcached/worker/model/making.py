"""Creates the configured model: the reference model, or the language model of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.engine import Sampled
from mmcached.wire.messages.worker import RunChunk
from mmcached.worker.model.batch import PackedBatch
from mmcached.worker.model.encoder import ItemEncoder
from mmcached.worker.model.kv_pool import KVPool
from mmcached.worker.model.model import ReferenceModel


class LanguageModel(Protocol):
    """Tokens and embeddings -> hidden states -> next tokens; see `CausalDecoder` for shapes."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor: ...

    def forward(
        self,
        embeddings: torch.Tensor,
        batch: PackedBatch,
        pool: KVPool,
        *,
        layers_out: list[torch.Tensor] | None = None,
    ) -> torch.Tensor: ...

    def pick(self, hidden_states: torch.Tensor, chunks: Sequence[RunChunk]) -> list[Sampled]: ...


@dataclass(slots=True)
class Model:
    """Parts of a worker's model; `encoder` is the reference model's, for a service without a checkpoint's."""

    encoder: ItemEncoder
    decoder: LanguageModel
    pool: KVPool


def make_model(config: ServiceConfig, device: torch.device) -> Model:
    """Return the model of a service; raises `ConfigError`, see `check_bounds` and `CheckpointDecoder`."""
    model = config.model
    if model.kind == "hf":
        from mmcached.worker.language.decoder import CheckpointDecoder  # imports Transformers

        decoder = CheckpointDecoder(config, device)
        return Model(ItemEncoder(model, device), decoder, decoder.pool)
    reference = ReferenceModel(model, max_model_len=config.max_model_len, device=device)
    pool = KVPool(
        num_layers=model.num_layers,
        num_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        hidden_size=model.hidden_size,
        device=device,
    )
    return Model(reference.encoder, reference.decoder, pool)
