"""Model runner: executes one step plan. It has items encoded, runs the chunks and answers.

    plan ── check everything ──> encode ──> emit ──> forward, sample ──> prefix rows ──> output + payload frames
              nothing changed      └────────────── any exception: withdraw all of it ──────────────┘

Invariant: a failed step leaves no results: its items are not cached, its slots not computed, its rows not stored. A
dead device ends the process.

Results are exact integers, so they do not depend on batching; `digest` covers all results of the step, and is the same
on every rank, if there are several. Only rank 0 stores prefix rows and returns rows and embeddings.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from mmcached.cache.checkpoints.language import Language
from mmcached.cache.store_keys import EMBEDDINGS, TOKENS
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.engine_stats import WorkerStats
from mmcached.wire.errors import ErrorInfo, InvariantError, MmcachedError, error_to_wire
from mmcached.wire.messages.engine import StepFailed, StepOutput
from mmcached.wire.messages.parts import Inline, StoredItem
from mmcached.wire.messages.worker import RunChunk, StepPlan
from mmcached.wire.process.turns import places
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.devices import failure_of, is_alive
from mmcached.worker.encoders.encoder import MeasuredForm
from mmcached.worker.encoders.making import make_encoder, make_remote_encoder
from mmcached.worker.hidden_states import KeySpec, TensorPrefixStore
from mmcached.worker.model.batch import PackedBatch, check_chunk, context_slots, pack
from mmcached.worker.model.making import make_model
from mmcached.worker.payloads import Record
from mmcached.worker.steps.item_outputs import ItemOutputs
from mmcached.worker.steps.prefix_rows import PrefixRows
from mmcached.worker.steps.step_result import StepResult

_logger = logging.getLogger(__name__)


class ModelRunner(Closeable):
    """Model and caches of one worker; `device` holds weights, KV and encoder outputs, prefix rows are on the CPU.

    Rank 0 stores the prefix rows and returns tensors. Without `run_dir` nothing is loaded from the store or saved.
    """

    def __init__(self, config: ServiceConfig, *, rank: int, device: torch.device, run_dir: Path | None = None) -> None:
        self._config = config
        self._language = Language.of(config)
        self._device = device
        self._rank = rank
        self._returns_tensors = rank == 0
        self._model = make_model(config, device)
        self._pool = self._model.pool
        make = make_remote_encoder if config.encoder.ray_address else make_encoder
        encoder = make(config, self._model.encoder, device)
        self._items = ItemOutputs(config, encoder, rank=rank, device=device, run_dir=run_dir)
        self.encoder_cache = self._items.cache
        has_store = rank == 0 and self._language.prefix_blocks(config) > 0
        self.prefix_store = make_prefix_store(config, self._language) if has_store else None
        self._rows = PrefixRows(self.prefix_store)
        self._row_keys = self._language.row_keys
        self._row_dtype: torch.dtype = getattr(torch, self._language.dtype)
        self._tokens_computed = 0

    def execute(self, plan: StepPlan, frames: Sequence[Frame]) -> tuple[StepOutput | StepFailed, list[Frame]]:
        """Execute a plan and return its answer and payload frames; `frames` hold the plan's inline items."""
        made = StepResult()
        error, digest = self._attempt(plan, frames, made)
        self._items.store.end_views(is_over=self._device.type == "cpu")
        if error is not None:
            report = self._rows.withdraw()
            return StepFailed(plan.engine_incarnation, plan.worker_epoch, plan.step, error, report), []
        report = self._rows.commit()
        output = StepOutput(
            plan.engine_incarnation,
            plan.worker_epoch,
            plan.step,
            digest,
            made.sampled,
            made.rows,
            made.embeddings,
            self.encoder_cache.keys() if self._config.debug_check_workers else None,
            report,
            made.missing,
            made.saved,
            made.saved_rows,
        )
        return output, made.frames

    def read(self, payload: StoredItem | Inline, frames: Sequence[Frame], *, mm_hash: str) -> Record:
        return self._items.store.read(payload, frames, mm_hash=mm_hash)

    def save_outputs(self) -> None:
        """Save the outputs encoded in the last step; called after its answer is sent."""
        self._items.save()

    @property
    def measured(self) -> MeasuredForm:
        return self._items.measured

    @property
    def encoder_fingerprint(self) -> str:
        return self._items.fingerprint

    def clear(self) -> None:
        self._pool.clear()
        self.encoder_cache.clear()
        self._rows.clear()

    def stats(self) -> WorkerStats:
        rows = self.prefix_store.stats() if self.prefix_store is not None else None
        items, saver = self._items, self._items.saved
        return WorkerStats(
            items_encoded=items.counts.num_encoded,
            encode_latency=items.latency.histogram(),
            items_loaded=items.counts.num_loaded,
            tiles_encoded=items.counts.num_tiles_encoded,
            tiles_reused=items.counts.num_tiles_reused,
            outputs_saved=saver.saved,
            outputs_dropped=saver.dropped,
            outputs_refused=saver.refused + saver.failed,
            embeds_encoded=items.counts.num_embeds_encoded,
            tokens_computed=self._tokens_computed,
            items_viewed=items.num_viewed,
            bytes_viewed=items.bytes_viewed,
            items_copied=items.num_copied,
            bytes_copied=items.bytes_copied,
            encoder_entries=len(self.encoder_cache),
            encoder_bytes=self.encoder_cache.nbytes,
            prefix_row_queries=rows.read + rows.missing if rows else 0,
            prefix_row_hits=rows.read if rows else 0,
            prefix_bytes=rows.blocks * rows.block_nbytes if rows else 0,
            prefix_evictions=rows.evictions if rows else 0,
            by_modality=items.counts.by_modality(),
        )

    def close(self) -> None:
        self._items.close()

    def _attempt(self, plan: StepPlan, frames: Sequence[Frame], made: StepResult) -> tuple[ErrorInfo | None, bytes]:
        """Execute a plan into `made`; on an error withdraw it and return the error. No view outlives the call."""
        # Even if the step fails: the engine names a freed key once.
        self._items.begin(plan)
        self._rows.begin(plan)
        slots = torch.empty(0, dtype=torch.int64)
        try:
            batch = self._check_chunks(plan.chunks)
            if batch is not None:
                slots = batch.slots_cpu
            self._items.make_all(plan, frames, made)
            outputs = self._run(plan.chunks, batch, made) if batch is not None else {}
            digest = (
                made.digest(outputs.values()) if self._config.world_size > 1 else b""
            )  # compared between ranks only
            for emit in plan.emit if self._returns_tensors else ():
                self._items.emit(emit, made)
            for chunk, key, first, rows in made.large_rows:
                self._items.emit_rows(chunk, key, first, rows, made)
            self._items.report_times()
            return None, digest
        except MmcachedError as error:
            self._withdraw(plan, slots)
            return error_to_wire(error), b""
        except Exception as error:
            if not is_alive(self._device):
                raise  # the device is dead for this process; a new process may use it
            _logger.error("a step failed", extra={"error": type(error).__name__, "where": places(error)})
            self._withdraw(plan, slots)
            return error_to_wire(failure_of(error)), b""

    def _withdraw(self, plan: StepPlan, slots: torch.Tensor) -> None:
        self._items.drop_encoded(plan)
        self._pool.forget_slots(slots)

    def _check_chunks(self, chunks: Sequence[RunChunk]) -> PackedBatch | None:
        if not chunks:
            return None
        config = self._config
        for chunk in chunks:
            check_chunk(
                chunk,
                num_blocks=config.num_kv_blocks,
                block_size=config.block_size,
                vocabulary_size=self._language.vocabulary_size,
                max_model_len=config.max_model_len,
            )
        return pack(chunks, config.block_size, self._device)

    def _run(self, chunks: Sequence[RunChunk], batch: PackedBatch, made: StepResult) -> Mapping[str, torch.Tensor]:
        """Run all chunks as one batch; return by key the rows, `(num_tokens, width)` on the CPU."""
        embeddings = self._model.decoder.embed(batch.token_ids)
        for chunk, start in zip(chunks, batch.starts, strict=False):
            self._place_spans(chunk, embeddings[start : start + len(chunk.token_ids)], batch)
        self._pool.mark_computed(batch.slots_cpu)
        for chunk in chunks:
            self._pool.check_computed(context_slots(chunk, self._config.block_size))
        layers: list[torch.Tensor] = []
        layers_out = layers if len(self._row_keys) > 1 else None
        hidden = self._model.decoder.forward(embeddings, batch, self._pool, layers_out=layers_out)
        sampling = [index for index, chunk in enumerate(chunks) if chunk.sample]
        if sampling:
            last_rows = hidden[[batch.starts[index + 1] - 1 for index in sampling]]
            made.sampled += self._model.decoder.pick(last_rows, [chunks[index] for index in sampling])
        self._tokens_computed += len(hidden)
        tensors = [hidden, *layers]
        outputs = {key: rows.to(self._row_dtype).cpu() for key, rows in zip(self._row_keys, tensors, strict=False)}
        if self._returns_tensors:
            self._rows.add_rows(chunks, outputs, made)
        return outputs

    def _place_spans(self, chunk: RunChunk, embeddings: torch.Tensor, batch: PackedBatch) -> None:
        for span in chunk.spans:
            batch.items[span.key] = self.encoder_cache.get(span.key)
            encoded = batch.items[span.key][EMBEDDINGS]
            if span.position + span.length > len(embeddings) or span.start + span.length > len(encoded):
                raise InvariantError(
                    f"span {span} of request {chunk.request_id}: the chunk has {len(embeddings)} tokens, "
                    f"the item {len(encoded)} embeddings",
                    request_id=chunk.request_id,
                )
            taken = slice(span.start, span.start + span.length)
            rows = embeddings[span.position : span.position + span.length]
            rows[:] = encoded[taken].to(embeddings.dtype)
            if TOKENS in batch.items[span.key]:
                tokens = batch.items[span.key][TOKENS][taken]
                rows[tokens >= 0] = self._model.decoder.embed(tokens[tokens >= 0])


def make_prefix_store(config: ServiceConfig, language: Language) -> TensorPrefixStore:
    dtype = getattr(torch, language.dtype)
    schema = [KeySpec(key, (width,), dtype) for key, width in language.row_widths.items()]
    return TensorPrefixStore(
        config.block_size, schema, byte_budget=config.tensor_prefix_cache_bytes, max_positions=config.max_model_len
    )
