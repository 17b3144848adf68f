"""Decoder of a checkpoint: packed rows -> hidden states -> next tokens, each sequence alone, piece by piece.

Results are bit-identical for any prefix hit, batch, preemption and restart, on one device with one number of threads:
the shapes of all products follow from a prompt's length and a token's position (`pieces`), and rows are multiplied with
the vocabulary one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmcached.cache.checkpoints.language import FIELD, Language
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.messages.engine import Sampled
from mmcached.wire.messages.worker import RunChunk
from mmcached.worker.language.loading import load_language_model
from mmcached.worker.language.pictures import items_in, levels, masks
from mmcached.worker.language.pieces import pieces
from mmcached.worker.language.pool_cache import PoolCache
from mmcached.worker.language.positions import GridPositions
from mmcached.worker.language.sampler import choose
from mmcached.worker.model.batch import PackedBatch
from mmcached.worker.model.kv_pool import KVPool


class CheckpointDecoder:
    """Language model of the configured checkpoint on `device`, and its KV pool.

    Raises:
        ConfigError: As `load_language_model`; or the model cannot compute over the pool.
    """

    def __init__(self, config: ServiceConfig, device: torch.device) -> None:
        language, path = Language.of(config), Path(config.model.path)
        dtype: torch.dtype = getattr(torch, language.dtype)
        self._model = load_language_model(path, dtype, device)
        self._text = self._model.get_decoder()
        self._text_config = self._model.config.get_text_config()
        self._device = device
        self._chunk_tokens = language.chunk_tokens
        self._keeps_items_whole = language.keeps_items_whole
        heads, head_size = self._heads()
        self.pool = KVPool(
            num_layers=language.num_layers,
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            hidden_size=heads * head_size,
            device=device,
            dtype=dtype,
        )
        self._cache = PoolCache(self.pool, language.num_layers)
        self._grid_positions = GridPositions.of(self._model, self.pool)
        self._num_layer_outputs = len(language.row_keys) - 1
        self._layer_rows: list[torch.Tensor] = []
        for layer in self._text.layers[: self._num_layer_outputs]:
            layer.register_forward_hook(self._note_layer)
        self._try(path)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return new token embeddings `(n, hidden_size)` for `(n,)` int64 ids."""
        embedded: torch.Tensor = self._text.get_input_embeddings()(token_ids)
        return embedded

    def forward(
        self,
        embeddings: torch.Tensor,
        batch: PackedBatch,
        pool: KVPool,
        *,
        layers_out: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Compute all rows of a batch, chunk after chunk, and write their keys and values into the pool.

        A chunk may continue an earlier chunk of the same batch. Arguments and result are those of `CausalDecoder`, in
        the dtype of the model; the hidden states are the last layer's, normalized.
        """
        hidden = torch.empty_like(embeddings)
        layers = [torch.empty_like(embeddings) for _ in range(self._num_layer_outputs)]
        positions = batch.positions if self._grid_positions is None else self._grid_positions.place(batch)
        for index, (chunk, first) in enumerate(zip(batch.chunks, batch.starts, strict=False)):
            offset = first - chunk.num_computed_tokens
            for start, end in self._pieces(chunk):
                rows = slice(start + offset, end + offset)
                self._set_piece(chunk, start, end, batch.slots[rows])
                items = list(items_in(batch, index, start, end))
                if self._keeps_items_whole:
                    more = masks(items, self._text_config, embeddings[None, rows], self._cache)
                else:
                    more = levels(items, end - start)
                hidden[rows] = self._compute(embeddings[rows], positions[..., rows], **more)
                for layer, computed in zip(layers, self._layer_rows, strict=True):
                    layer[rows] = computed
        if layers_out is not None:
            layers_out += layers
        return hidden

    def pick(self, hidden_states: torch.Tensor, chunks: Sequence[RunChunk]) -> list[Sampled]:
        """Return the next token for each of `(n, hidden_size)` hidden states, the last ones of the chunks."""
        return [choose(self.logits(row), chunk) for row, chunk in zip(hidden_states, chunks, strict=True)]

    def logits(self, hidden_state: torch.Tensor) -> torch.Tensor:
        """Return the logits of one token, `(vocabulary_size,)` float32; of a batch of tokens bits would differ."""
        logits: torch.Tensor = self._model.lm_head(hidden_state[None, None])[0, 0]
        cap = getattr(self._text_config, "final_logit_softcapping", None)
        return (torch.tanh(logits / cap) * cap if cap is not None else logits).float()

    def _compute(self, embeddings: torch.Tensor, positions: torch.Tensor, **more: Any) -> torch.Tensor:
        self._layer_rows.clear()
        output = self._text(
            inputs_embeds=embeddings[None],
            position_ids=positions[..., None, :],
            past_key_values=self._cache,
            use_cache=True,
            **more,
        )
        rows: torch.Tensor = output.last_hidden_state[0]
        return rows

    def _pieces(self, chunk: RunChunk) -> list[tuple[int, int]]:
        start = chunk.num_computed_tokens
        places = [(start + span.position, start + span.position + span.length) for span in chunk.spans]
        return list(
            pieces(
                start,
                start + len(chunk.token_ids),
                num_prompt_tokens=chunk.num_prompt_tokens,
                chunk_tokens=self._chunk_tokens,
                whole=places if self._keeps_items_whole else (),
            )
        )

    def _set_piece(self, chunk: RunChunk, start: int, end: int, slots: torch.Tensor) -> None:
        num_blocks = -(-end // self.pool.block_size)
        piece = self._cache.piece
        piece.start, piece.end, piece.slots = start, end, slots
        piece.block_table = torch.tensor([chunk.block_ids[:num_blocks]], dtype=torch.int64, device=self._device)

    def _note_layer(self, layer: torch.nn.Module, inputs: object, output: torch.Tensor | tuple[torch.Tensor]) -> None:
        self._layer_rows.append((output if isinstance(output, torch.Tensor) else output[0])[0])

    def _heads(self) -> tuple[int, int]:
        """Return the number of key heads of a layer and their size."""
        text = self._text_config
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return text.num_key_value_heads, size

    def _try(self, path: Path) -> None:
        """Compute a prompt of two tokens, and one token after it, in block 1; clear the pool."""
        try:
            for start, end in ((0, 2), (2, 3)):
                piece = self._cache.piece
                piece.start, piece.end = start, end
                piece.slots = torch.arange(start, end, device=self._device) + self.pool.block_size
                num_blocks = -(-end // self.pool.block_size)
                piece.block_table = torch.arange(1, num_blocks + 1, device=self._device)[None]
                positions = torch.arange(start, end, device=self._device)
                self.logits(self._compute(self.embed(positions), positions)[-1])
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            reason = f"cannot be computed over the KV pool: {type(error).__name__}: {str(error)[:200]}"
            raise ConfigError(FIELD, str(path), reason) from error
