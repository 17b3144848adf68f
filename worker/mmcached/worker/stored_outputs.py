"""Stored outputs are what encoders have said, in the store: this worker saves its own there, and loads those of others.

    save ──behind the step's answer, in a thread──> put under the item's key, or dropped: late, no room, weights changed
    get_or_encode ──one of the ranks──> encoded and put; the others wait for it, in the step. What is encoded in less
                    time than that takes, each rank encodes
    load ──the engine's lease──> views, to be copied before they are dropped; None: it is gone

Knows nothing of steps and caches. The store is a help: whatever becomes of it, nothing here raises because of it.
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


def contact(run_dir: Path) -> Client:
    """Return a client of the service; it comes back by itself after a restart of the frontend.

    What it finds is no hit: another rank has just encoded it for the same request, or the engine has counted it.
    """
    return Client(run_dir, timeout_s=CALL_S, connect_timeout_s=CALL_S, name="worker", counts_hits=False)


def own_share(items: Sequence[EncodeItem], rank: int, world_size: int, turn: int) -> list[int]:
    """Return the indexes of a step's items that a rank shall encode and save. All ranks share alike, by embeddings.

    >>> from mmcached.wire.messages.parts import StoredOutput
    >>> items = [EncodeItem("k", "m", num_embeds, StoredOutput("")) for num_embeds in (1, 9, 4, 4)]
    >>> own_share(items, 0, 2, 0), own_share(items, 1, 2, 0)
    ([1], [0, 2, 3])

    Args:
        turn: begins with another rank each time.
    """
    given = [0] * world_size
    shares: list[list[int]] = [[] for _ in given]
    for index in sorted(range(len(items)), key=lambda index: -items[index].num_embeds):
        least = min(range(world_size), key=lambda each: (given[each], (each - turn) % world_size))
        given[least] += items[index].num_embeds
        shares[least].append(index)
    return sorted(shares[rank])


class StoredOutputs(Closeable):
    """What encoders have said, as one worker sees it.

    Args:
        store: closed by its owner, before this: that ends what the savers' threads have asked.
        fingerprint: of this worker's encoder.
        device: where its outputs are.
    """

    def __init__(self, config: ServiceConfig, store: StoreContact, fingerprint: str, device: Device) -> None:
        self._device = device
        self._max_bytes = config.limits.max_unsaved_mb << 20
        self._max_inline_bytes = config.limits.max_inline_output_kb << 10
        self._wait_s = max(config.limits.output_wait_s, 0.001)
        self._min_shared_s = config.limits.min_shared_encode_ms / 1000
        self._s_per_embed: dict[Modality, deque[float]] = {each: deque(maxlen=NUM_TIMES) for each in MODALITIES}
        self._store = store
        self._fingerprint = fingerprint
        self._saver: Saver | None = None
        self._row_saver: Saver | None = None  # rows are no outputs, and wait for none

    @property
    def counters(self) -> SaverCounters:
        """What has become of outputs."""
        return SaverCounters() if self._saver is None else self._saver.counters

    def save_large(self, item: EmitEmbedding, output: Mapping[str, torch.Tensor]) -> bool:
        """As `save`, unless the output is small enough to travel inline; return whether it is being saved."""
        nbytes = sum(tensor.nbytes for tensor in output.values())
        return nbytes > self._max_inline_bytes and self.save(item, output)

    def save(self, item: EncodeItem | EmitEmbedding, output: Mapping[str, torch.Tensor]) -> bool:
        """Have an output saved, unless too much waits; return whether it is being saved.

        Its tensors must not change any more; they are copied from their device in the thread.
        """
        self._saver = self._saver or self._make_saver()
        return self._saver.save(
            output_key(self._fingerprint, item.mm_hash),
            sum(tensor.nbytes for tensor in output.values()),
            lambda: self._on_host(output),
            tenant=item.tenant,
            store_epoch=item.store_epoch,
        )

    def encoded(self, item: EncodeItem, seconds: float) -> None:
        """Take note of how long an item's encoding took here."""
        self._s_per_embed[item.modality].append(seconds / max(item.num_embeds, 1))

    def is_shared(self, item: EncodeItem) -> bool:
        """Return whether the ranks have one of them encode an item: it takes long enough, or nobody knows.

        The shortest of late counts: one that was interrupted says nothing. Ranks that differ both encode.
        """
        return item.num_embeds * min(self._s_per_embed[item.modality], default=inf) >= self._min_shared_s

    def save_large_rows(self, chunk: RunChunk, key: str, first: int, rows: torch.Tensor) -> SavedRows | None:
        """Have rows of a chunk saved that are too large to travel inline; return how they are named, or None."""
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

        Who has waited for too long, or finds no service, or another epoch than the plan's, encodes. **Read a record
        that was found, never write.**

        Args:
            encode: raises what this raises.
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
        """Return the record under a lease of the engine; None if it is gone. **Read it, never write.**"""
        return self._store.open(token)

    def close(self) -> None:
        """Drop what waits. A second call does nothing."""
        for saver in (self._saver, self._row_saver):
            if saver is not None:
                saver.close()

    def _on_host(self, output: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return an output's tensors on the host, once they are there."""
        return dict(zip(output, self._device.begin_copy(list(output.values()))(), strict=True))

    def _make_saver(self) -> Saver:
        return Saver(self._store.client(), max_bytes=self._max_bytes, timeout_s=CALL_S)
