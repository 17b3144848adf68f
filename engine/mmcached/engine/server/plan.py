"""Converts a scheduled step to a worker's plan: its parts become messages, inline items become payload frames."""

from __future__ import annotations

from mmcached.cache.store_keys import is_named
from mmcached.engine.scheduling.step import ScheduledChunk, ScheduledStep
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import CacheMiss
from mmcached.wire.messages.parts import Inline, StoredItem, StoredOutput
from mmcached.wire.messages.worker import EmitEmbedding, EncodeItem, RunChunk, StepPlan
from mmcached.wire.sockets.frames import Frame


def build_plan(
    step: ScheduledStep, items: ItemFrames, *, engine_incarnation: int, worker_epoch: int
) -> tuple[StepPlan, list[Frame]]:
    payload: list[Frame] = []
    plan = StepPlan(
        engine_incarnation=engine_incarnation,
        worker_epoch=worker_epoch,
        step=step.step_id,
        freed_keys=list(step.freed_keys),
        encode=[_encode_item(request, index, key, items, payload) for request, index, key in step.encode],
        emit=[_emit(request, index, key) for request, index, key in step.emit],
        chunks=[_run_chunk(chunk) for chunk in step.chunks],
        released=list(step.released),
        row_epoch=step.row_epoch,
    )
    return plan, payload


def _encode_item(request: Request, index: int, key: str, items: ItemFrames, payload: list[Frame]) -> EncodeItem:
    feature = request.features[index]
    where: StoredItem | Inline | StoredOutput
    if feature.has_output:
        if index not in request.outputs:  # the request that had the lease was preempted after reserving the item
            raise CacheMiss([feature.mm_hash])
        where = StoredOutput(request.outputs[index])
    elif isinstance(feature.payload, StoredItem):
        where = feature.payload
    else:
        frames = items.frames_of(request.request_id, index)
        where = Inline(len(payload), len(frames))
        payload.extend(frames)
    store_epoch = 0 if feature.has_output or is_named(feature.mm_hash) else request.store_epoch
    return EncodeItem(
        key,
        feature.mm_hash,
        feature.num_embeds,
        where,
        tenant=request.tenant,
        store_epoch=store_epoch,
        modality=feature.modality,
    )


def _emit(request: Request, index: int, key: str) -> EmitEmbedding:
    mm_hash = request.features[index].mm_hash
    if not request.takes_keys or is_named(mm_hash):
        return EmitEmbedding(request.request_id, index, key)
    return EmitEmbedding(request.request_id, index, key, mm_hash, request.tenant, request.store_epoch)


def _seen(request: Request) -> list[int]:
    if request.sampling is None or request.sampling.repetition_penalty == 1.0:
        return []
    return list(dict.fromkeys(request.token_ids))


def _run_chunk(chunk: ScheduledChunk) -> RunChunk:
    request = chunk.request
    return RunChunk(
        request_id=request.request_id,
        token_ids=request.token_ids[chunk.start : chunk.start + chunk.num_tokens],
        num_computed_tokens=chunk.start,
        block_ids=chunk.block_ids,
        spans=chunk.spans,
        sample=chunk.sample,
        row_keys=request.row_keys,
        first_row=request.num_rows_delivered,
        first_block=chunk.new_hashes.first_block,
        block_hashes=chunk.new_hashes.block_hashes,
        rows_name=request.rows_name,
        tenant=request.tenant if request.rows_name else "",
        store_epoch=request.store_epoch if request.rows_name else 0,
        num_prompt_tokens=request.num_prompt_tokens,
        sampling=request.sampling if chunk.sample else None,
        seen=_seen(request) if chunk.sample else [],
    )
