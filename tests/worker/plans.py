"""Step plans for tests: chunks with block tables of their own, so that a test says only what it is about."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from mmcached.wire.messages.worker import EmbedSpan, EmitEmbedding, EncodeItem, RunChunk, StepPlan

INCARNATION = 11
EPOCH = 22


def chunk(
    request_id: int,
    token_ids: Sequence[int],
    block_ids: Sequence[int],
    *,
    computed: int = 0,
    spans: Sequence[EmbedSpan] = (),
    sample: bool = False,
    hidden: bool = False,
    first_row: int | None = None,
    names: Sequence[bytes] = (),
) -> RunChunk:
    """Return a chunk; with `hidden`, its own rows are wanted, and those before it from `first_row` on.

    Args:
        names: of the request's blocks from the first one on.
    """
    keys = ["hidden_states"] if hidden else []
    first = computed if first_row is None else first_row
    tokens, blocks, replaced = list(token_ids), list(block_ids), list(spans)
    return RunChunk(request_id, tokens, computed, blocks, replaced, sample, keys, first, 0, list(names))


def names_of(token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Return a name for each full block: the same one just where all tokens up to its end are the same."""
    ends = range(block_size, len(token_ids) + 1, block_size)
    return [hashlib.sha256(repr(list(token_ids[:end])).encode()).digest() for end in ends]


def plan(
    step: int,
    *chunks: RunChunk,
    encode: Sequence[EncodeItem] = (),
    emit: Sequence[EmitEmbedding] = (),
    freed: Sequence[str] = (),
    released: Sequence[int] = (),
    row_epoch: int = 0,
    incarnation: int = INCARNATION,
    epoch: int = EPOCH,
) -> StepPlan:
    return StepPlan(
        incarnation, epoch, step, list(freed), list(encode), list(emit), list(chunks), list(released), row_epoch
    )
