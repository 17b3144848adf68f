"""Reads the items that plans name: in place in the store, or from the plan's own frames.

This worker is a client of the store: it takes its own lease for as long as it reads.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from mmcached.client import Client
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from mmcached.wire.messages.parts import Inline, StoredItem
from mmcached.wire.sockets.frames import Frame

Record = Mapping[str, Any]
CALL_S = 1.0
"""Deadline of a call to the frontend, which answers within one turn of its loop."""


class StoreContact(Closeable):
    """One worker's connection to the store, made at the first use; `make_client` is None if there is no store."""

    def __init__(self, make_client: Callable[[], Client] | None) -> None:
        self._make_client = make_client
        self._client: Client | None = None
        self._views: list[weakref.ref[torch.Tensor]] = []

    def client(self) -> Client:
        if self._client is None:
            if self._make_client is None:
                raise RemoteProtocolError("this worker has no store", "encode.payload")
            self._client = self._make_client()
        return self._client

    def open(self, token: str) -> Record | None:
        """Return the record under a lease of the engine, or None if it is missing. **Callers must not write to it.**"""
        if self._make_client is None:
            return None
        hit = self.client().open(token, view=True, timeout_s=CALL_S, counts=False)
        if hit is None:
            return None
        record: Record = hit.record
        self._views += [weakref.ref(each) for each in record.values() if isinstance(each, torch.Tensor)]
        return record

    def end_views(self, *, is_over: bool) -> None:
        """Release leases of views that only a reference cycle keeps alive, such as an exception's.

        `is_over` is False if a device may still be reading.
        """
        if is_over and any(view() is not None for view in self._views):
            gc.collect()
        self._views.clear()

    def read(self, payload: StoredItem | Inline, frames: Sequence[Frame], *, mm_hash: str) -> Record:
        """Return the record of one item.

        Tensors of an item in the store are views of read-only memory: never write to them. The lease ends with the last
        view.

        Raises:
            CacheMiss: it is not in the store any more, or the store cannot be reached.
            RemoteProtocolError: the frames are missing, or are not a record.
        """
        record: Record | None
        if isinstance(payload, Inline):
            end = payload.first_frame + payload.num_frames
            if end > len(frames):
                raise RemoteProtocolError(f"frames up to {end} named, {len(frames)} received", "encode.payload")
            record = decode_record_frames(frames[payload.first_frame : end], tensors="torch")
        else:
            record = self.open(payload.token)
            if record is None:
                raise CacheMiss([mm_hash])
        if not isinstance(record, Mapping):
            raise RemoteProtocolError(f"item {mm_hash} is not a record of named tensors", "encode.payload")
        return record

    def close(self) -> None:
        """Close the connection without waiting for pending calls. Idempotent."""
        if self._client is not None:
            self._client.close()
