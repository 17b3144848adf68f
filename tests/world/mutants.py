"""The product with one rule removed, for each rule: some world of a small set must find what goes wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
import torch

from mmcached.cache.hashing import block_hash
from mmcached.engine import Request, Scheduler
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.engine.hidden_states.kept_rows import KeptRows
from mmcached.engine.hidden_states.listed_rows import ListedRows, Report
from mmcached.engine.hidden_states.tensor_prefix_index import NewBlockHashes, TensorPrefixIndex
from mmcached.engine.kv.kv_cache import KVCache
from mmcached.engine.results.results import Results
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.scheduling.suspects import Suspects
from mmcached.engine.steps.step_log import StepLog
from mmcached.wire.errors import LocalProtocolError, MissingRows, PoisonousRequest
from mmcached.wire.messages.worker import StepPlan
from mmcached.worker.hidden_states import RefusedRows, RowChunk, RowSpan, RowsRead, TensorPrefixStore
from mmcached.worker.hidden_states import Report as WorkerReport
from mmcached.worker.steps import prefix_rows
from mmcached.worker.steps.prefix_rows import PrefixRows
from mmcached.worker.steps.step_result import StepResult
from tests.removals import mutants
from tests.worker.hidden_states.by_content.delayed_transfer import DelayedTransfer

Patch = pytest.MonkeyPatch
Outputs = Mapping[str, Any]


# ---- the store


def writes_one_step_late(patch: Patch) -> None:
    pending: dict[TensorPrefixStore, tuple[list[RowChunk], dict[str, Any]]] = {}
    real = TensorPrefixStore.write

    def write(store: TensorPrefixStore, chunks: Sequence[RowChunk], outputs: Outputs) -> list[RefusedRows]:
        late = pending.get(store)
        pending[store] = list(chunks), {key: rows.clone() for key, rows in outputs.items()}
        return real(store, *late) if late else []

    patch.setattr(TensorPrefixStore, "write", write)


def writes_aliases(patch: Patch) -> None:
    """Keeps what it was handed, not a copy, until the step ends or somebody reads."""
    pending: dict[TensorPrefixStore, tuple[list[RowChunk], dict[str, Any]]] = {}
    write, read, commit = TensorPrefixStore.write, TensorPrefixStore.read, TensorPrefixStore.commit

    def flush(store: TensorPrefixStore) -> None:
        late = pending.pop(store, None)
        if late:
            write(store, *late)

    def write_later(store: TensorPrefixStore, chunks: Sequence[RowChunk], outputs: Outputs) -> list[RefusedRows]:
        flush(store)
        pending[store] = list(chunks), dict(outputs.items())
        return []

    def read_now(store: TensorPrefixStore, spans: Sequence[RowSpan], keys: Collection[str]) -> RowsRead:
        flush(store)
        return read(store, spans, keys)

    def commit_now(store: TensorPrefixStore) -> WorkerReport:
        flush(store)
        return commit(store)

    patch.setattr(TensorPrefixStore, "write", write_later)
    patch.setattr(TensorPrefixStore, "read", read_now)
    patch.setattr(TensorPrefixStore, "commit", commit_now)


def sends_aliases(patch: Patch) -> None:
    """Looks at the rows when the copy is done."""
    patch.setattr(DelayedTransfer, "clone", lambda transfer, rows: rows)


def takes_positions_from_a_counter(patch: Patch) -> None:
    """Takes where the chunk begins for where it ends, as if the engine's counter were read after the step."""
    real = TensorPrefixStore.write

    def write(store: TensorPrefixStore, chunks: Sequence[RowChunk], outputs: Outputs) -> list[RefusedRows]:
        return real(store, [chunk._replace(start=max(0, chunk.start - chunk.num_rows)) for chunk in chunks], outputs)

    patch.setattr(TensorPrefixStore, "write", write)


def fills_with_zeros(patch: Patch) -> None:
    def rows_before(step: Any, behind: Sequence[int], rows: RowsRead, made: StepResult) -> dict[Any, torch.Tensor]:
        found = {}
        for span, index in enumerate(behind):
            chunk = step.chunks[index]
            for key in chunk.row_keys:
                try:
                    found[index, key] = rows.get(key, span)
                except MissingRows:
                    found[index, key] = torch.zeros(chunk.num_computed_tokens - chunk.first_row, 8, dtype=torch.int32)
        return found

    patch.setattr(prefix_rows, "_rows_before", rows_before)


def keeps_rows_of_former_weights(patch: Patch) -> None:
    def begin(rows: PrefixRows, plan: StepPlan) -> None:
        if rows.store is not None:
            rows.store.release(plan.released)

    patch.setattr(PrefixRows, "begin", begin)


def releases_too_early(patch: Patch) -> None:
    real = PrefixRows.begin

    def begin(rows: PrefixRows, plan: StepPlan) -> None:
        real(rows, plan)
        if rows.store is not None:
            rows.store.release([chunk.request_id for chunk in plan.chunks])

    patch.setattr(PrefixRows, "begin", begin)


def leaves_half_a_step(patch: Patch) -> None:
    """What a step that failed has written stays."""
    patch.setattr(TensorPrefixStore, "withdraw", lambda store: None)


# ---- the index and the hit


def forgets_to_release(patch: Patch) -> None:
    real = TensorPrefixIndex.take_released
    patch.setattr(TensorPrefixIndex, "take_released", lambda index: real(index)[1:])


def rounds_a_hit_up(patch: Patch) -> None:
    real = KeptRows.usable_prefix

    def usable_prefix(rows: KeptRows, request: Request, num_kv_hit_tokens: int) -> int:
        block_size = rows.index.block_size
        num_usable = real(rows, request, num_kv_hit_tokens)
        return min(num_kv_hit_tokens, -(-num_usable // block_size) * block_size)

    patch.setattr(KeptRows, "usable_prefix", usable_prefix)


def rounds_a_hit_down_and_says_nothing(patch: Patch) -> None:
    """The blocks are those of the shorter hit, the number of tokens is not."""
    real = KVCache.get_computed_blocks

    def get_computed_blocks(kv: KVCache, request: Request, max_num_tokens: int | None = None) -> Any:
        hit, num_tokens = real(kv, request, max_num_tokens)
        return hit, num_tokens if max_num_tokens is None else max_num_tokens

    patch.setattr(KVCache, "get_computed_blocks", get_computed_blocks)


def does_not_clamp_the_hit(patch: Patch) -> None:
    patch.setattr(KeptRows, "usable_prefix", lambda rows, request, num_kv_hit_tokens: num_kv_hit_tokens)


def lists_rows_before_the_commit(patch: Patch) -> None:
    real = TensorPrefixIndex.reserve

    def reserve(
        index: TensorPrefixIndex, request: Request, start: int, num_tokens: int, *, written: Any, needed: Any = ()
    ) -> NewBlockHashes:
        names = real(index, request, start, num_tokens, written=written, needed=needed)
        end, size = start + num_tokens, index.block_size
        blocks = range(start // size, min(-(-end // size), len(request.block_hashes)))
        index.listed.apply_report(
            {request.block_hashes[at]: dict.fromkeys(written, min(size, end - at * size)) for at in blocks}
        )
        return names

    patch.setattr(TensorPrefixIndex, "reserve", reserve)


def does_not_hear_of_losses(patch: Patch) -> None:
    real = ListedRows.apply_report

    def apply_report(listed: ListedRows, report: Report) -> None:
        real(listed, {digest: rows for digest, rows in report.items() if rows})

    patch.setattr(ListedRows, "apply_report", apply_report)


def names_blocks_of_another_request(patch: Patch) -> None:
    real = TensorPrefixIndex.reserve
    last: list[tuple[int, Sequence[bytes]]] = []

    def reserve(
        index: TensorPrefixIndex, request: Request, start: int, num_tokens: int, **named: Any
    ) -> NewBlockHashes:
        names = real(index, request, start, num_tokens, **named)
        if not names.block_hashes:
            return names
        other = [digests for request_id, digests in last if request_id != request.request_id]
        last.append((request.request_id, names.block_hashes))
        digests = other[-1] if other and len(other[-1]) == len(names.block_hashes) else names.block_hashes
        return NewBlockHashes(names.first_block, digests)

    patch.setattr(TensorPrefixIndex, "reserve", reserve)


# ---- the scheduler


def counts_rows_as_delivered_before_the_commit(patch: Patch) -> None:
    real = Scheduler.withdraw

    def withdraw(scheduler: Scheduler, step: ScheduledStep, prefix_report: Report | None = None) -> None:
        for chunk in step.chunks:
            chunk.request.num_rows_delivered = max(chunk.request.num_rows_delivered, chunk.end)
        real(scheduler, step, prefix_report)

    patch.setattr(Scheduler, "withdraw", withdraw)


def goes_on_without_the_missing_rows(patch: Patch) -> None:
    patch.setattr(Scheduler, "_note_missing", lambda scheduler, missing: set())


def publishes_blocks_of_a_withdrawn_step(patch: Patch) -> None:
    real = KVCache.withdraw

    def withdraw(kv: KVCache, step_id: int) -> list[int]:
        try:
            kv.commit(step_id)
        except LocalProtocolError:  # it was never launched
            return real(kv, step_id)
        return []

    patch.setattr(KVCache, "withdraw", withdraw)


def leaves_items_and_tenants_out_of_digests(patch: Patch) -> None:
    patch.setattr(block_hash, "extra_keys_by_block", lambda *args: {})


def finds_blocks_of_former_weights(patch: Patch) -> None:
    patch.setattr(KVCache, "new_epoch", lambda kv: kv.epoch)


def computes_suspects_with_everybody(patch: Patch) -> None:
    patch.setattr(Suspects, "taking_part", lambda suspects, queue, alone: list(queue))


def blames_all_that_were_in_a_deadly_step(patch: Patch) -> None:
    def blame(scheduler: Scheduler, step: ScheduledStep, sentence: Any) -> None:
        for request in step.requests():
            if request.request_id in scheduler._requests:
                request.num_faults += 2
                scheduler._fail(request, PoisonousRequest(2, 2))

    patch.setattr(Scheduler, "_blame", blame)


def blames_nobody(patch: Patch) -> None:
    patch.setattr(Scheduler, "_blame", lambda scheduler, step, sentence: None)


def hands_on_rows_twice(patch: Patch) -> None:
    patch.setattr(Results, "mark_sent", lambda results, message: None)


# ---- the encoder's books


def lists_encoder_outputs_of_a_withdrawn_step(patch: Patch) -> None:
    patch.setattr(EncoderCacheTable, "withdraw", EncoderCacheTable.commit)


def forgets_to_tell_a_freed_key(patch: Patch) -> None:
    real = StepLog.take_notices
    patch.setattr(StepLog, "take_notices", lambda log: real(log)[1:])


def tells_a_freed_key_twice(patch: Patch) -> None:
    patch.setattr(StepLog, "commit", StepLog.withdraw)


def does_not_tell_again_what_failed(patch: Patch) -> None:
    patch.setattr(StepLog, "withdraw", StepLog.commit)


MUTANTS = mutants(
    writes_one_step_late,
    writes_aliases,
    sends_aliases,
    takes_positions_from_a_counter,
    fills_with_zeros,
    keeps_rows_of_former_weights,
    releases_too_early,
    leaves_half_a_step,
    forgets_to_release,
    rounds_a_hit_up,
    rounds_a_hit_down_and_says_nothing,
    does_not_clamp_the_hit,
    lists_rows_before_the_commit,
    does_not_hear_of_losses,
    names_blocks_of_another_request,
    counts_rows_as_delivered_before_the_commit,
    goes_on_without_the_missing_rows,
    publishes_blocks_of_a_withdrawn_step,
    leaves_items_and_tenants_out_of_digests,
    finds_blocks_of_former_weights,
    computes_suspects_with_everybody,
    blames_all_that_were_in_a_deadly_step,
    blames_nobody,
    hands_on_rows_twice,
    lists_encoder_outputs_of_a_withdrawn_step,
    forgets_to_tell_a_freed_key,
    tells_a_freed_key_twice,
    does_not_tell_again_what_failed,
)

SEEDS = (4, 183, 75, 240, 712, 149, 10, 53, 109, 11, 461, 123, 245, 16, 17, 242)
"""Worlds in which mutants are noticed, those first in which most are soon; `test_worlds` plays them with all rules."""
