"""Step plans for tests: chunks with block tables of their own, so that a test says only what it is about."""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.wire.messages.worker import EmbedSpan, EmitEmbedding, EncodeItem, RunChunk, StepPlan

NONCE = 11
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
    hit: bool = False,
) -> RunChunk:
    return RunChunk(request_id, list(token_ids), computed, list(block_ids), list(spans), sample, hidden, hit)


def plan(
    step: int,
    *chunks: RunChunk,
    encode: Sequence[EncodeItem] = (),
    emit: Sequence[EmitEmbedding] = (),
    freed: Sequence[str] = (),
    nonce: int = NONCE,
    epoch: int = EPOCH,
) -> StepPlan:
    return StepPlan(nonce, epoch, step, list(freed), list(encode), list(emit), list(chunks))
