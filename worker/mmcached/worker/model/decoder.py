"""Causal decoder of the reference model: packed rows -> hidden states, over a paged KV pool.

Its output is bit-identical for any batching, chunking, block layout or preemption, because every number is exact
(`arithmetic`).

    x_i  = embedding of token i (or of an item) + A * i + B * (i^2 mod PRIME) + C * (i // PRIME)
    per layer, per head h of `head_size` dimensions:
        q, k, v = x · W_q, x · W_k, x · W_v
        weight_ij = 1 + (q_i · k_j + slope_h * (i - j)) mod 13          for j <= i, else 0
        x_i += (sum over j of weight_ij * v_j) · W_o
        x_i += (x_i · W_up)^2 · W_down
    hidden state of i = x_i                      int32 in [0, PRIME)
    logits = x · W_vocabulary                    the next token is the largest, ties to the lowest id
    everything else modulo PRIME

No weight is 0, positions enter twice, and squares make it non-linear: so every hidden state depends on every earlier
token and on its position. The begin token and the tokens of images, videos and audio are never sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmcached.wire.messages.engine import Sampled
from mmcached.wire.messages.worker import RunChunk
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, TOKEN_IDS, VOCABULARY_SIZE
from mmcached.worker.model.arithmetic import PRIME, draw, reduce_
from mmcached.worker.model.batch import AttentionGroup, PackedBatch
from mmcached.worker.model.bounds import ATTENTION_MODULUS
from mmcached.worker.model.kv_pool import KVPool

_TILE_ELEMENTS = 1 << 17
"""Attention scores computed at once: 1 MiB, which fits a core's cache."""


class DecoderLayer:
    """Weights of one layer, each `(hidden_size, hidden_size)`."""

    def __init__(self, seed: int, name: str, hidden_size: int, device: torch.device) -> None:
        names = ("query", "key", "value", "output", "up", "down")
        self.query, self.key, self.value, self.output, self.up, self.down = (
            draw(seed, f"{name}.{part}", (hidden_size, hidden_size)).to(device) for part in names
        )

    def feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = reduce_(x @ self.up)
        inner = reduce_(inner.mul_(inner))
        return reduce_((inner @ self.down).add_(x))


class CausalDecoder:
    """Decoder weights on `device`, deterministic in `config.seed`; `bounds.check_bounds` has accepted the sizes."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        seed, hidden_size = config.seed, config.hidden_size
        self._num_heads = config.num_heads
        self._device = device
        self._tokens = draw(seed, "decoder.tokens", (VOCABULARY_SIZE, hidden_size)).to(device)
        self._place = draw(seed, "decoder.place", (3, hidden_size)).to(device)
        self._layers = [DecoderLayer(seed, f"decoder.{i}", hidden_size, device) for i in range(config.num_layers)]
        self._vocabulary = draw(seed, "decoder.vocabulary", (hidden_size, VOCABULARY_SIZE)).to(device)
        self._slopes = torch.arange(1, self._num_heads + 1, dtype=torch.float64, device=device).view(1, -1, 1, 1)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return new token embeddings `(n, hidden_size)` float64 for `(n,)` int64 ids."""
        return self._tokens.index_select(0, token_ids)

    def forward(
        self,
        embeddings: torch.Tensor,
        batch: PackedBatch,
        pool: KVPool,
        *,
        layers_out: list[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Compute all rows of a batch and write their keys and values into the pool.

        Each layer writes all rows before any row attends, so a chunk may continue another chunk of the same batch.

        Args:
            embeddings: `(num_tokens, hidden_size)` float64, the input of each packed row.
            layers_out: receives the output of each layer, the hidden states last.

        Returns:
            Hidden states `(num_tokens, hidden_size)` float64, whole numbers in [0, PRIME).
        """
        x = reduce_(embeddings + self._position_terms(batch.positions))
        for index, layer in enumerate(self._layers):
            query, key, value = (reduce_(x @ weight) for weight in (layer.query, layer.key, layer.value))
            pool.write(index, batch.slots, key, value)
            mixed = torch.empty_like(x)
            for group in batch.groups:
                keys, values = pool.gather(index, group.block_table)
                mixed[group.rows] = self._attend(query[group.rows], keys, values, group)
            x = reduce_((mixed @ layer.output).add_(x))
            x = layer.feed_forward(x)
            if layers_out is not None:
                layers_out.append(x)
        return x

    def pick(self, hidden_states: torch.Tensor, chunks: Sequence[RunChunk]) -> list[Sampled]:
        """Return the next token of each chunk's request, from `(n, hidden_size)` hidden states of their last rows."""
        tokens = self.sample(hidden_states)
        return [Sampled(chunk.request_id, token) for chunk, token in zip(chunks, tokens, strict=True)]

    def sample(self, hidden_states: torch.Tensor) -> list[int]:
        """Return the next token for each of `(n, hidden_size)` hidden states, see `pick_tokens`."""
        logits = reduce_(hidden_states @ self._vocabulary)
        return pick_tokens(logits)

    def _position_terms(self, positions: torch.Tensor) -> torch.Tensor:
        digits = torch.stack([positions, (positions * positions) % PRIME, positions // PRIME], dim=1)
        return digits.to(torch.float64) @ self._place

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: AttentionGroup
    ) -> torch.Tensor:
        """Return the attention output `(batch * n, hidden_size)`, reduced, for rows of the group in order.

        `query` is `(batch * n, hidden_size)`; `keys` and `values` are `(batch, context, hidden_size)`.
        """
        batch, context, hidden_size = keys.shape
        heads, head_size = self._num_heads, hidden_size // self._num_heads
        positions = group.positions
        queries = query.view(batch, -1, heads, head_size).transpose(1, 2)
        keys = keys.view(batch, context, heads, head_size).permute(0, 2, 3, 1).contiguous()
        values = values.view(batch, context, heads, head_size).transpose(1, 2).contiguous()
        places = torch.arange(context, device=keys.device)
        tile = max(1, _TILE_ELEMENTS // (batch * heads * context))
        mixed = []
        for start in range(0, positions.shape[1], tile):
            lag = (positions[:, start : start + tile, None] - places)[:, None]
            scores = queries[:, :, start : start + tile] @ keys
            weights = reduce_(scores.addcmul_(lag.to(torch.float64), self._slopes), ATTENTION_MODULUS).add_(1)
            mixed.append(weights.masked_fill_(lag < 0, 0) @ values)
        return reduce_(torch.cat(mixed, dim=2).transpose(1, 2).reshape(-1, hidden_size))


def pick_tokens(logits: torch.Tensor) -> list[int]:
    """Return the argmax of each row of `(n, VOCABULARY_SIZE)` whole numbers, ties to the lowest id.

    Logit and id are combined into one number, so that no two are equal and the order of comparison does not matter. The
    begin token and the tokens of images, videos and audio are excluded.
    """
    ids = torch.arange(VOCABULARY_SIZE, dtype=torch.float64, device=logits.device)
    joined = logits * VOCABULARY_SIZE + (VOCABULARY_SIZE - 1 - ids)
    joined[:, [BEGIN_TOKEN_ID, *TOKEN_IDS.values()]] = -1
    return [int(token) for token in joined.argmax(dim=1).tolist()]
