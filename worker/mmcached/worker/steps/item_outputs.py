"""Puts the encoder outputs of a step's items into the encoder cache, and emits requested outputs.

encoded here, or by an actor ─┐
loaded under a lease ─────────┼──> encoder cache ──> spans of chunks, emitted embeddings
encoded by another rank ──────┘         └──> saved into the store, after the step's answer
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from mmcached.cache.name_files import note_name
from mmcached.cache.store_keys import output_key
from mmcached.client.device.devices import device_of
from mmcached.client.device.stopwatch import Stopwatch
from mmcached.client.saver import SaverCounters
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss
from mmcached.wire.latency import Latency
from mmcached.wire.messages.engine import ItemEmbedding, ItemSaved, RequestSavedRows
from mmcached.wire.messages.parts import Inline, RequestRows, Rows, StoredItem, StoredOutput
from mmcached.wire.messages.worker import EmitEmbedding, EncodeItem, RunChunk, StepPlan
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.encoder_cache import EncoderCache
from mmcached.worker.encoders.encoder import Encoder, MeasuredForm, Outputs, TileEncoder, are_finite, outputs_in
from mmcached.worker.encoders.remote import RemoteEncoder
from mmcached.worker.payloads import Record, StoreContact
from mmcached.worker.steps.output_counts import OutputCounts
from mmcached.worker.steps.step_result import StepResult
from mmcached.worker.steps.tile_outputs import TileOutputs
from mmcached.worker.stored_outputs import StoredOutputs, contact, own_share


class ItemOutputs(Closeable):
    """Encoder, encoder cache and store access of one worker; without `run_dir` nothing is loaded or saved.

    `num_viewed` counts items that were read in place, `num_copied` those from frames.
    """

    def __init__(
        self,
        config: ServiceConfig,
        encoder: Encoder | RemoteEncoder,
        *,
        rank: int,
        device: torch.device,
        run_dir: Path | None,
    ) -> None:
        self.cache = EncoderCache()
        self.latency = Latency()
        self.counts = OutputCounts()
        self.num_viewed = 0
        self.bytes_viewed = 0
        self.num_copied = 0
        self.bytes_copied = 0
        self.encoder = encoder
        self._rank = rank
        self._world_size = config.world_size
        self._device = device
        self._transfers = device_of(str(device), max_pinned_bytes=config.limits.max_pinned_mb << 20)
        self.store = StoreContact(None if run_dir is None else partial(contact, run_dir))
        self._outputs: StoredOutputs | None = None
        if run_dir is not None and config.shares_encoder_outputs:
            self._outputs = StoredOutputs(config, self.store, self.fingerprint, self._transfers)
            if encoder.rows is not None:
                note_name(run_dir, encoder.rows)
        self._tiles: TileOutputs | None = None
        if isinstance(encoder, TileEncoder):
            self._tiles = TileOutputs(
                encoder,
                self._outputs,
                StoreContact(None if run_dir is None else partial(contact, run_dir, counts_hits=True)),
                form=lambda: self.measured.form,
                device=device,
                counts=self.counts,
            )
        self._begun: dict[str, Callable[[], Outputs]] = {}  # remote encodings of the step, by key
        self._unsaved: list[EncodeItem] = []
        self._encodings: dict[str, Stopwatch] = {}  # of this step, by key
        self._watches: deque[tuple[Stopwatch, Callable[[float], None]]] = deque()  # of encodings, in order

    @cached_property
    def measured(self) -> MeasuredForm:
        """Form and size of the encoder's outputs, measured on a small item."""
        return self.encoder.measure()

    @property
    def fingerprint(self) -> str:
        return self.encoder.fingerprint

    @property
    def saved(self) -> SaverCounters:
        return SaverCounters() if self._outputs is None else self._outputs.counters

    def begin(self, plan: StepPlan) -> None:
        """Drop the freed keys, and the unfinished work of an earlier step."""
        self.cache.drop(plan.freed_keys)
        self._unsaved.clear()
        self._encodings.clear()
        self._begun.clear()
        if self._tiles is not None:
            self._tiles.begin()

    def make_all(self, plan: StepPlan, frames: Sequence[Frame], made: StepResult) -> None:
        watch, num_encoded = Stopwatch(self._device), self.counts.num_encoded
        own = own_share(plan.encode, self._rank, self._world_size, plan.step)
        if isinstance(self.encoder, RemoteEncoder):
            for index in own:
                self._begin(plan.encode[index], frames)
        # Its own items first: by the time it gets to the other items, their ranks have encoded them.
        for index in [*own, *(index for index in range(len(plan.encode)) if index not in own)]:
            self._make(plan.encode[index], frames, is_own=index in own)
        for item in plan.encode:
            made.used += self.cache.get(item.key).values()
        watch.stop()
        if self.counts.num_encoded > num_encoded:
            self._watches.append((watch, self.latency.add))
        for emit in plan.emit:
            made.used += self.cache.get(emit.key).values()

    def drop_encoded(self, plan: StepPlan) -> None:
        """Drop the outputs that a failed step has encoded."""
        self._unsaved.clear()
        if self._tiles is not None:
            self._tiles.begin()
        self.cache.drop(item.key for item in plan.encode)

    def save(self) -> None:
        """Save the outputs encoded in the last step; called after its answer is sent."""
        unsaved, self._unsaved = self._unsaved, []
        for item in unsaved:
            if self._outputs is not None and item.key in self.cache:
                self._outputs.save(item, self.cache.get(item.key), self._cost_of(item.key))
        if self._tiles is not None:
            self._tiles.save()

    def report_times(self) -> None:
        """Report the durations of finished encodings; the others follow in a later step."""
        while self._watches and self._watches[0][0].is_over():
            watch, tell = self._watches.popleft()
            tell(watch.seconds())

    def close(self) -> None:
        self.store.close()
        if self._tiles is not None:
            self._tiles.close()
        if self._outputs is not None:
            self._outputs.close()
        self._transfers.close()
        if isinstance(self.encoder, RemoteEncoder):
            self.encoder.close()

    def emit(self, emit: EmitEmbedding, made: StepResult) -> None:
        """Add an output to the result; or its key, if it is saved in the store, which begins now."""
        output = self.cache.get(emit.key)
        if (
            emit.store_epoch
            and self._outputs is not None
            and self._outputs.save_large(emit, output, self._cost_of(emit.key))
        ):
            self._unsaved = [item for item in self._unsaved if item.key != emit.key]
            key = output_key(self.fingerprint, emit.mm_hash)
            made.saved.append(ItemSaved(emit.request_id, emit.index, key))
            return
        for name, tensor in output.items():
            made.embeddings.append(ItemEmbedding(emit.request_id, emit.index, name, made.add_frame(tensor)))

    def emit_rows(self, chunk: RunChunk, key: str, first: int, rows: torch.Tensor, made: StepResult) -> None:
        saved = None if self._outputs is None else self._outputs.save_large_rows(chunk, key, first, rows)
        if saved is not None:
            made.saved_rows.append(RequestSavedRows(chunk.request_id, saved))
        else:
            made.rows.append(RequestRows(chunk.request_id, Rows(key, first, made.add_frame(rows))))

    def _read(self, item: EncodeItem, payload: StoredItem | Inline, frames: Sequence[Frame]) -> Record:
        record = self.store.read(payload, frames, mm_hash=item.mm_hash)
        if isinstance(payload, StoredItem):
            self.num_viewed += 1
            self.bytes_viewed += sum(tensor.nbytes for tensor in record.values() if isinstance(tensor, torch.Tensor))
        else:
            self.num_copied += 1
            named = frames[payload.first_frame : payload.first_frame + payload.num_frames]
            self.bytes_copied += sum(len(frame) for frame in named)
        return record

    def _begin(self, item: EncodeItem, frames: Sequence[Frame]) -> None:
        """Start encoding an item remotely while the step goes on, unless its output is in the store."""
        if isinstance(self.encoder, RemoteEncoder) and not isinstance(item.payload, StoredOutput):
            record = self._read(item, item.payload, frames)
            self._begun[item.key] = self.encoder.begin(record, item.num_embeds)

    def _encode(
        self, item: EncodeItem, payload: StoredItem | Inline, frames: Sequence[Frame], *, saves_tiles: bool
    ) -> Outputs:
        """Encode one item into the encoder cache and return its outputs; its new tiles are saved by one rank.

        Views of the item end with the call, or with their copy onto a device.
        """
        num_reused = self.counts.num_tiles_reused
        finish = self._begun.pop(item.key, None)
        if finish is None:
            record = self._read(item, payload, frames)
            if self._tiles is not None:
                finish = partial(self._tiles.encode, record, item, saves=saves_tiles)
            else:
                finish = partial(self.encoder.encode, record, item.num_embeds)
        watch = Stopwatch(self._device)
        outputs = finish()
        watch.stop()
        self._encodings[item.key] = watch
        self.cache.put(item.key, outputs)
        is_whole = self.counts.num_tiles_reused == num_reused
        if self._outputs is not None and self._world_size > 1 and is_whole:
            self._watches.append((watch, partial(self._outputs.encoded, item)))
        self.counts.encoded(item)
        return outputs

    def _cost_of(self, key: str) -> Callable[[], float]:
        """Return a function that returns the seconds of an encoding of this step; 0.0 while the device is not done."""
        watch = self._encodings.get(key)
        return lambda: watch.seconds() if watch is not None and watch.is_over() else 0.0

    def _make(self, item: EncodeItem, frames: Sequence[Frame], *, is_own: bool) -> None:
        """Put the output of one item into the encoder cache: loaded, encoded, or shared by another rank.

        If the ranks share the work and `is_own`, this rank encodes and saves it.
        """
        payload = item.payload
        if isinstance(payload, StoredOutput):
            self._load(item, payload)
            return
        encode = partial(self._encode, item, payload, frames, saves_tiles=is_own)
        if self._outputs is None or not item.store_epoch:
            encode()
            return
        if self._world_size == 1 or not self._outputs.is_shared(item) or self._outputs.must_verify(item):
            encode()
            if is_own:
                self._unsaved.append(item)
            return
        for_all = partial(self._encode, item, payload, frames, saves_tiles=True)
        record = self._outputs.get_or_encode(item, for_all)
        if item.key not in self.cache and not self._cache_record(item, record):
            encode()  # a client has put another record under its key

    def _cache_record(self, item: EncodeItem, record: Mapping[str, Any]) -> bool:
        """Copy a record into the encoder cache; return False if it is not an output of this encoder."""
        outputs = outputs_in(record, self.measured.form, item.num_embeds)
        if outputs is None or not are_finite(outputs):
            return False
        self.cache.put(item.key, dict(zip(outputs, self._transfers.load(list(outputs.values())), strict=True)))
        self.counts.loaded(item)
        return True

    def _load(self, item: EncodeItem, stored: StoredOutput) -> None:
        """Copy an output that is under the engine's lease into the encoder cache.

        Raises `CacheMiss` if it is missing, or not an output of this encoder: a client has put another record there.
        """
        record = None if self._outputs is None else self._outputs.load(stored.token)
        if record is None or not self._cache_record(item, record):
            raise CacheMiss([item.mm_hash])
