"""Decoder of a checkpoint: packed rows -> hidden states -> next tokens, in the calls that the mode makes of a step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from mmcached.cache.checkpoints.language import FIELD, ROW_MODULES, Language
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.messages.engine import Sampled
from mmcached.wire.messages.worker import RunChunk
from mmcached.worker.language.aligned import AlignedPasses
from mmcached.worker.language.loading import load_language_model
from mmcached.worker.language.packed import NAME, PackedPasses
from mmcached.worker.language.positions import GridPositions
from mmcached.worker.language.sampler import choose
from mmcached.worker.model.batch import PackedBatch, pack
from mmcached.worker.model.kv_pool import KVPool


class CheckpointDecoder:
    """Language model of the configured checkpoint on `device`, and its KV pool.

    Raises:
        ConfigError: As `load_language_model`; or the model cannot compute over the pool, or lacks a module.
    """

    def __init__(self, config: ServiceConfig, device: torch.device) -> None:
        language, path = Language.of(config), Path(config.model.path)
        dtype: torch.dtype = getattr(torch, language.dtype)
        self._model = load_language_model(path, dtype, device)
        self._text = self._model.get_decoder()
        self._text_config = self._model.config.get_text_config()
        self._device = device
        heads, head_size = self._heads()
        self.pool = KVPool(
            num_layers=language.num_layers,
            num_blocks=config.num_kv_blocks,
            block_size=config.block_size,
            hidden_size=heads * head_size,
            device=device,
            dtype=dtype,
        )
        self._passes: AlignedPasses | PackedPasses
        if language.chunk_tokens:
            self._passes = AlignedPasses(self.pool, language, self._text_config)
        else:
            self._passes = PackedPasses(self.pool)
            self._text.set_attn_implementation(NAME)
        self._grid_positions = GridPositions.of(self._model, self.pool)
        self._module_rows: dict[str, torch.Tensor] = {}  # of the last call, by key
        self._module_widths = {key: language.row_widths[key] for key in config.model.modules_by_key}
        for key, name in config.model.modules_by_key.items():
            self._module(name).register_forward_hook(partial(self._note_rows, key))
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
        """Compute all rows of a batch, and write their keys and values into the pool.

        Arguments and result are those of `CausalDecoder`, in the dtype of the model; the hidden states are the last
        layer's, normalized.
        """
        hidden = torch.empty_like(embeddings)
        more = {key: embeddings.new_empty(len(embeddings), width) for key, width in self._module_widths.items()}
        positions = batch.positions if self._grid_positions is None else self._grid_positions.place(batch)
        for rows, arguments in self._passes.of(batch, embeddings):
            output = self._text(
                inputs_embeds=embeddings[None, rows], position_ids=positions[..., None, rows], **arguments
            )
            hidden[rows] = output.last_hidden_state[0]
            for key, all_rows in more.items():
                all_rows[rows] = self._module_rows.pop(key)
        if layers_out is not None:
            layers_out += more.values()
        return hidden

    def pick(self, hidden_states: torch.Tensor, chunks: Sequence[RunChunk]) -> list[Sampled]:
        """Return the next token for each of `(n, hidden_size)` hidden states, the last ones of the chunks."""
        parts = torch.split(hidden_states, self._passes.rows_per_product)
        rows = (row for part in parts for row in self.logits(part))
        return [choose(row, chunk) for row, chunk in zip(rows, chunks, strict=True)]

    def logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits, `(n, vocabulary_size)` float32, for `(n, hidden_size)` hidden states."""
        logits: torch.Tensor = self._model.lm_head(hidden_states)
        cap = getattr(self._text_config, "final_logit_softcapping", None)
        return (torch.tanh(logits / cap) * cap if cap is not None else logits).float()

    def _module(self, name: str) -> torch.nn.Module:
        try:
            found: torch.nn.Module = self._text.get_submodule(name)
        except AttributeError as error:
            raise ConfigError(ROW_MODULES, name, f"a module of {type(self._text).__name__}") from error
        return found

    def _note_rows(
        self, key: str, module: torch.nn.Module, inputs: object, output: torch.Tensor | tuple[torch.Tensor]
    ) -> None:
        self._module_rows[key] = (output if isinstance(output, torch.Tensor) else output[0])[0]

    def _heads(self) -> tuple[int, int]:
        """Return the number of key heads of a layer and their size."""
        text = self._text_config
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return text.num_key_value_heads, size

    def _try(self, path: Path) -> None:
        """Compute a prompt of two tokens, and one token after it, from block 1 on; no slot is marked as computed."""
        block_size = self.pool.block_size
        block_ids = range(1, 1 + -(-3 // block_size))
        try:
            for tokens in ([0, 1], [2]):
                chunk = RunChunk(0, tokens, tokens[0], block_ids, [], True, [], 0, 0, [], num_prompt_tokens=2)
                batch = pack([chunk], block_size, self._device)
                self.pick(self.forward(self.embed(batch.token_ids), batch, self.pool)[-1:], [chunk])
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            reason = f"cannot be computed over the KV pool: {type(error).__name__}: {str(error)[:200]}"
            raise ConfigError(FIELD, str(path), reason) from error
