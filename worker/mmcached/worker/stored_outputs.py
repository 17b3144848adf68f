"""Encoder outputs in the store: this worker saves its own outputs there, and loads those of other workers.

    save ──after the step's answer, in a thread──> put under the item's key, or dropped: late, no space, new weights
    get_or_encode ──one of the ranks──> encoded and put; the others wait for it, in the step. Items that are encoded
                    faster than that are encoded by each rank
    load ──the engine's lease──> views, to be copied before they are dropped; None: the record is missing

The store is optional: its failures raise nothing here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch

from mmcached.cache.store_keys import ROWS, output_key
from mmcached.client import Client
from mmcached.client.device.devices import Device
from mmcached.client.saver import Saver, SaverCounters
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import SavedRows
from mmcached.wire.messages.worker import EmitEmbedding, EncodeItem, RunChunk
from mmcached.wire.vocabulary import MODALITIES, Modality
from mmcached.worker.payloads import CALL_S, StoreContact

NUM_TIMES = 8


def contact(run_dir: Path, *, counts_hits: bool = False) -> Client:
    """Return a client of the service; it reconnects after a restart of the frontend.

    Finds of items do not count as hits: another rank has just encoded the item for the same request, or the engine has
    counted it.
    """
    return Client(run_dir, timeout_s=CALL_S, connect_timeout_s=CALL_S, name="worker", counts_hits=counts_hits)


def own_share(items: Sequence[EncodeItem], rank: int, world_size: int, turn: int) -> list[int]:
    """Return the indices of a step's items that a rank encodes and saves; ranks get similar numbers of embeddings.

    >>> from mmcached.wire.messages.parts import StoredOutput
    >>> items = [EncodeItem("k", "m", num_embeds, StoredOutput("")) for num_embeds in (1, 9, 4, 4)]
    >>> own_share(items, 0, 2, 0), own_share(items, 1, 2, 0)
    ([1], [0, 2, 3])

    `turn` rotates the rank that gets the first item.
    """
    given = [0] * world_size
    shares: list[list[int]] = [[] for _ in given]
    for index in sorted(range(len(items)), key=lambda index: -items[index].num_embeds):
        least = min(range(world_size), key=lambda each: (given[each], (each - turn) % world_size))
        given[least] += items[index].num_embeds
        shares[least].append(index)
    return sorted(shares[rank])


MAX_UNSAVED_BYTES = 256 << 20
"""Encoder outputs or rows of one worker that wait to be saved; more are not saved."""


class StoredOutputs(Closeable):
    """Encoder outputs in the store, as one worker uses them. Close `store` first, which ends saver calls."""

    def __init__(self, config: ServiceConfig, store: StoreContact, fingerprint: str, device: Device) -> None:
        self._device = device
        self._max_inline_bytes = config.limits.max_inline_output_kb << 10
        self._wait_s = max(config.limits.output_wait_s, 0.001)
        self._min_shared_s = config.limits.min_shared_encode_ms / 1000
        self._s_per_embed: dict[Modality, deque[float]] = {each: deque(maxlen=NUM_TIMES) for each in MODALITIES}
        self._store = store
        self._fingerprint = fingerprint
        self._saver: Saver | None = None
        self._row_saver: Saver | None = None  # separate, so that rows do not wait for outputs

    @property
    def counters(self) -> SaverCounters:
        return SaverCounters() if self._saver is None else self._saver.counters

    def save_large(self, item: EmitEmbedding, output: Mapping[str, torch.Tensor], cost_s: Callable[[], float]) -> bool:
        """Save an output as `save`, unless it is small enough to be sent inline; return whether it is being saved."""
        nbytes = sum(tensor.nbytes for tensor in output.values())
        return nbytes > self._max_inline_bytes and self.save(item, output, cost_s)

    def save(
        self, item: EncodeItem | EmitEmbedding, output: Mapping[str, torch.Tensor], cost_s: Callable[[], float]
    ) -> bool:
        """Save an output in the background, unless too many bytes wait; return whether it is being saved.

        Its tensors must not change any more; the thread copies them from their device.

        Args:
            cost_s: Returns the seconds that encoding it took, once the tensors are copied; 0.0: unknown.
        """
        return self._save(output_key(self._fingerprint, item.mm_hash), item, output, cost_s)

    def save_tile(
        self, item: EncodeItem, digest: str, output: Mapping[str, torch.Tensor], cost_s: Callable[[], float]
    ) -> bool:
        """Save the output of a tile as that of its item; see `save`."""
        return self._save(self.tile_key(digest), item, output, cost_s)

    def tile_key(self, digest: str) -> str:
        """Return the key of a tile's output, which no item has."""
        return output_key(self._fingerprint, digest, "tile")

    def _save(
        self,
        key: str,
        item: EncodeItem | EmitEmbedding,
        output: Mapping[str, torch.Tensor],
        cost_s: Callable[[], float],
    ) -> bool:
        self._saver = self._saver or self._make_saver()
        return self._saver.save(
            key,
            sum(tensor.nbytes for tensor in output.values()),
            lambda: self._on_host(output),
            tenant=item.tenant,
            store_epoch=item.store_epoch,
            cost_s=cost_s,
        )

    def encoded(self, item: EncodeItem, seconds: float) -> None:
        self._s_per_embed[item.modality].append(seconds / max(item.num_embeds, 1))

    def is_shared(self, item: EncodeItem) -> bool:
        """Return whether one rank encodes an item for all: if it takes long enough, or its duration is unknown.

        Uses the shortest of the last durations, since interrupted encodings take longer. Ranks that disagree both
        encode.
        """
        return item.num_embeds * min(self._s_per_embed[item.modality], default=inf) >= self._min_shared_s

    def must_verify(self, item: EncodeItem) -> bool:
        """Return whether the engine has an item encoded although the store has its output, to compare both."""
        client, key = self._store.client(), output_key(self._fingerprint, item.mm_hash)
        return client.is_verifying() and client.exists(key, tenant=item.tenant)

    def save_large_rows(self, chunk: RunChunk, key: str, first: int, rows: torch.Tensor) -> SavedRows | None:
        """Save rows of a chunk that are too large to be sent inline; return their name in the store, or None."""
        if rows.nbytes <= self._max_inline_bytes:
            return None
        name = f"{chunk.rows_name}/{list(chunk.row_keys).index(key)}/{first}-{first + len(rows)}"
        self._row_saver = self._row_saver or self._make_saver()
        is_saved = self._row_saver.save(
            name, rows.nbytes, lambda: {ROWS: rows}, tenant=chunk.tenant, store_epoch=chunk.store_epoch
        )
        if not is_saved:
            return None
        return SavedRows(key, first, name, str(rows.dtype).removeprefix("torch."), tuple(rows.shape))

    def get_or_encode(self, item: EncodeItem, encode: Callable[[], Mapping[str, torch.Tensor]]) -> Mapping[str, Any]:
        """Return the record of an item; if it has none, one process of this host encodes it, and the others wait.

        A process whose wait times out, or that finds no service or another epoch than the plan's, encodes itself.
        Passes on the exceptions of `encode`. **Callers must not write to a record that was found.**
        """
        return self._store.client().get_or_compute(
            output_key(self._fingerprint, item.mm_hash),
            lambda: self._on_host(encode()),
            view=True,
            timeout_s=self._wait_s,
            tenant=item.tenant,
            store_epoch=item.store_epoch,
        )

    def load(self, token: str) -> Mapping[str, Any] | None:
        """Return the record under a lease of the engine, or None if it is missing. **Callers must not write to it.**"""
        return self._store.open(token)

    def close(self) -> None:
        """Drop pending saves. Idempotent."""
        for saver in (self._saver, self._row_saver):
            if saver is not None:
                saver.close()

    def _on_host(self, output: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return dict(zip(output, self._device.begin_copy(list(output.values()))(), strict=True))

    def _make_saver(self) -> Saver:
        return Saver(self._store.client(), max_bytes=MAX_UNSAVED_BYTES, timeout_s=CALL_S)
