"""Packed batch: positions and KV slots of a step's tokens, and the groups of rows that attend together.

The tokens of all chunks are concatenated; attention runs per group, because contexts differ.

    chunks      a a a b c c d          packed rows 0 … 6
    positions   4 5 6 9 0 1 3
    groups      [a] [c] one each       [b d] single tokens: one padded group, longest contexts first

A group is `batch` requests with `n` rows each: one chunk of several tokens, or several chunks of one token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.worker import RunChunk

_MAX_GROUP_SLOTS = 1 << 15
"""Most padded context rows in a group of single tokens: bounds the memory of a gather, and the padding."""


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """Rows that attend together, on the model's device.

    Attributes:
        rows: `(batch * n,)` int64, packed rows.
        positions: `(batch, n)` int64.
        block_table: `(batch, blocks)` int64, padded with the null block.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows of one step, each in exactly one group.

    Attributes:
        starts: first packed row of each chunk, then the number of rows: `num_chunks + 1` numbers.
        token_ids, positions, slots: `(num_tokens,)` int64 on the model's device.
        slots_cpu: the same slots on the CPU.
        chunks: the packed chunks, in order.
        items: encoder outputs of the items in the chunks, by key, once they are made.
    """

    starts: list[int]
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    slots_cpu: torch.Tensor
    groups: list[AttentionGroup]
    chunks: Sequence[RunChunk]
    items: dict[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)


def pack(chunks: Sequence[RunChunk], block_size: int, device: torch.device) -> PackedBatch:
    """Pack at least one chunk that passed `check_chunk`; raises `InvariantError` if two tokens have the same slot."""
    counts = [len(chunk.token_ids) for chunk in chunks]
    starts = [0, *np.cumsum(counts).tolist()]
    token_ids = np.concatenate([np.asarray(chunk.token_ids, np.int64) for chunk in chunks])
    positions = np.concatenate([_positions(chunk) for chunk in chunks])
    slots = np.concatenate([_slots(chunk, block_size, chunk.num_computed_tokens) for chunk in chunks])
    if len(np.unique(slots)) != len(slots):
        raise InvariantError("two tokens of one step share a KV slot")
    slots_cpu = torch.from_numpy(slots)
    return PackedBatch(
        starts,
        torch.from_numpy(token_ids).to(device),
        torch.from_numpy(positions).to(device),
        slots_cpu.to(device),
        slots_cpu,
        _groups(chunks, starts, block_size, device),
        chunks,
    )


def context_slots(chunk: RunChunk, block_size: int) -> torch.Tensor:
    """Return the slots of all positions up to the chunk's end, `(context,)` int64 on the CPU."""
    return torch.from_numpy(_slots(chunk, block_size, 0))


def check_chunk(chunk: RunChunk, *, num_blocks: int, block_size: int, vocabulary_size: int, max_model_len: int) -> None:
    """Raise `InvariantError`, with request, field and limit, if a chunk does not fit the pool or the model."""
    context = chunk.num_computed_tokens + len(chunk.token_ids)
    needed = -(-context // block_size)
    if not chunk.token_ids:
        reason = "token_ids is empty"
    elif context > max_model_len:
        reason = f"ends at {context} tokens, max_model_len is {max_model_len}"
    elif max(chunk.token_ids) >= vocabulary_size:
        reason = f"token id {max(chunk.token_ids)}, the vocabulary has {vocabulary_size}"
    elif len(chunk.block_ids) < needed:
        reason = f"{len(chunk.block_ids)} blocks of {block_size} for {context} tokens, {needed} are needed"
    elif not 0 < min(chunk.block_ids[:needed]) <= max(chunk.block_ids[:needed]) < num_blocks:
        reason = f"block ids {chunk.block_ids[:needed]} must lie in 1 … {num_blocks - 1}"
    else:
        return
    raise InvariantError(f"chunk of request {chunk.request_id}: {reason}", request_id=chunk.request_id)


def _positions(chunk: RunChunk) -> np.ndarray:
    return np.arange(chunk.num_computed_tokens, chunk.num_computed_tokens + len(chunk.token_ids), dtype=np.int64)


def _slots(chunk: RunChunk, block_size: int, first_position: int) -> np.ndarray:
    positions = np.arange(first_position, chunk.num_computed_tokens + len(chunk.token_ids), dtype=np.int64)
    blocks = np.asarray(chunk.block_ids, np.int64)
    return blocks[positions // block_size] * block_size + positions % block_size


def _groups(
    chunks: Sequence[RunChunk], starts: Sequence[int], block_size: int, device: torch.device
) -> list[AttentionGroup]:
    def blocks_of(index: int) -> int:
        return -(-(chunks[index].num_computed_tokens + len(chunks[index].token_ids)) // block_size)

    many = [index for index, chunk in enumerate(chunks) if len(chunk.token_ids) > 1]
    single = sorted(
        (index for index, chunk in enumerate(chunks) if len(chunk.token_ids) == 1), key=blocks_of, reverse=True
    )
    members = [[index] for index in many]
    while single:
        size = max(1, _MAX_GROUP_SLOTS // (blocks_of(single[0]) * block_size))
        members.append(single[:size])
        single = single[size:]
    groups = []
    for group in members:
        table = np.zeros((len(group), max(map(blocks_of, group))), np.int64)
        for row, index in enumerate(group):
            table[row, : blocks_of(index)] = chunks[index].block_ids[: blocks_of(index)]
        rows = np.concatenate([np.arange(starts[index], starts[index + 1], dtype=np.int64) for index in group])
        positions = np.stack([_positions(chunks[index]) for index in group])
        groups.append(AttentionGroup(*(torch.from_numpy(array).to(device) for array in (rows, positions, table))))
    return groups
