"""Keeps records of clips in the store: the slices of each clip, and the item of each place in a file.

    clip/<key of the clip>      {"slices": [[key, embeddings, start_s, end_s], …]}      the clip need not be opened
    slice/<file, place>         {"slice": [key, embeddings, start_s, end_s]}            it need not be decoded

They outlive this frontend, and end with the other derived records of their epoch. Records of clips are also in the
second level, for which a request waits once. Records of slices stay on their host: an unknown clip has hundreds of
slices, and each would be one more fetch. A client that may put records of a tenant may overwrite these, so an invalid
record counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from mmcached.cache.checkpoints.checkpoint import max_embeds_per_item
from mmcached.cache.clip_keys import ListedSlice, clip_record
from mmcached.cache.store_keys import store_key
from mmcached.frontend.store.fetch_table import Parked, Wanted
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.second_level import SecondLevelConnection
from mmcached.gateway.processing.media import Slice
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.waits import Verb, Wait, Waits
from mmcached.shm.store import codec
from mmcached.wire.config import ServiceConfig


class ClipRecords:
    """The records of clips in a frontend's store."""

    def __init__(
        self,
        records: RecordStore,
        config: ServiceConfig,
        waits: Waits[OpenRequest],
        second_level: SecondLevelConnection | None = None,
    ) -> None:
        self._records = records
        self._second_level = second_level
        self._max_embeds = max_embeds_per_item(config)
        self._waits = waits

    @property
    def epoch(self) -> int:
        """The epoch of the store."""
        return self._records.epoch

    def slices(self, tenant: str, key_of_clip: str) -> list[Slice]:
        """Return the slices of a clip in order; empty if they are unknown."""
        return self._read(tenant, clip_record(key_of_clip), "slices", list[ListedSlice])

    def slice(self, tenant: str, key: str) -> Slice | None:
        """Return the slice with this key of `slice_record`; None if it is unknown."""
        found = self._read(tenant, key, "slice", tuple[ListedSlice])
        return found[0] if found else None

    def fetch(self, request: OpenRequest, keys_of_clips: Iterable[str]) -> Verb[None]:
        """Wait for records of clips that the second level may have."""
        if self._second_level is None or not self._second_level.is_open:
            return
        tenant, keys = request.message.tenant, [clip_record(key) for key in keys_of_clips]
        missing = [Wanted(store_key(tenant, key), tenant, key) for key in keys]
        key = "fetch", request.number
        parked = Parked("", request.number, b"", partial(self._waits.wake, key), waits_elsewhere=False)
        if self._second_level.park(parked, missing, claims=False):
            yield Wait({key})

    def put(self, tenant: str, key_of_clip: str, slices: Sequence[Slice], *, epoch: int) -> None:
        """Keep the slices of a clip, if the store has room."""
        key = clip_record(key_of_clip)
        is_new = not self._records.has(tenant, key)
        self._put(tenant, key, {"slices": [list(each) for each in slices]}, epoch)
        place = self._records.find(tenant, key)
        if is_new and place is not None and self._second_level is not None:
            self._second_level.was_kept(Wanted(store_key(tenant, key), tenant, key), place)

    def drop(self, tenant: str, key_of_clip: str) -> None:
        """Drop the record of a clip's slices."""
        self._records.drop(tenant, clip_record(key_of_clip))

    def put_slice(self, tenant: str, key: str, found: Slice, *, epoch: int) -> None:
        """Keep the key and length of a slice, if the store has room."""
        self._put(tenant, key, {"slice": [list(found)]}, epoch)

    def _read(self, tenant: str, key: str, name: str, kind: Any) -> list[Slice]:
        handle = self._records.get(tenant, key, counts=False)
        head = None if handle is None else self._records.in_ring.head(handle)
        if head is None:
            return []
        try:
            listed = msgspec.convert(head.tree.get(name), kind)
        except msgspec.ValidationError:
            return []
        is_possible = all(num_embeds <= self._max_embeds for _, num_embeds, _, _ in listed)
        return [Slice(*each) for each in listed] if is_possible else []

    def _put(self, tenant: str, key: str, record: dict[str, Any], epoch: int) -> None:
        self._records.put(tenant, key, codec.encode(record), epoch=epoch)
