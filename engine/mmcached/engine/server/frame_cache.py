"""Caches the frames of inline items (mode `lru`), so that later requests may name them without data.

    ingest(seq, items)                       with data   -> kept, and served; the newest always wins
      seq is not the next one: clear first   without     -> served from here, or missed
      then one move of the whole request     all misses  -> one CacheMiss, after all items with data were kept

The frontend's mirror made the same move (`mmcached.cache.request_lru`), with the same sizes, before it sent this
message; so a message is ingested before anything else in it is checked. Nothing is decoded here.

Source: vLLM's `MultiModalReceiverCache`, and its later typed miss; the original kept an old payload when a new one
came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from mmcached.wire.sockets.frames import Frame

Frames = tuple[Frame, ...]


class ReceivedItem(NamedTuple):
    """One received item of a request; `frames` is None if it was sent without data."""

    mm_hash: str
    nbytes: int
    frames: Sequence[Frame] | None


class FrameCache:
    """Cache of item frames by `mm_hash`; `lru` is empty and has the capacity of the frontend's mirror."""

    def __init__(self, lru: RequestLRU[Frames]) -> None:
        self._lru = lru
        self._last_mirror_seq: int | None = None

    def ingest(self, mirror_seq: int, items: Sequence[ReceivedItem]) -> list[Frames]:
        """Cache a message's items, and return the frames of each, in prompt order. Messages are numbered from 1.

        Raises:
            CacheMiss: names all items without data that are missing here, or have another size here, each once, in
                order. The others are kept.
            RemoteProtocolError: no number, or an item larger than stated; nothing has changed, and the next message
                will show a gap.
        """
        if mirror_seq < 1:
            raise RemoteProtocolError(f"{mirror_seq}: at least 1, because this engine caches items", "mirror_seq")
        for index, item in enumerate(items):
            nbytes = 0 if item.frames is None else sum(memoryview(frame).nbytes for frame in item.frames)
            if nbytes > item.nbytes:
                reason = f"{nbytes} bytes received, {item.nbytes} stated"
                raise RemoteProtocolError(reason, f"features[{index}].nbytes")
        if self._last_mirror_seq is not None and mirror_seq != self._last_mirror_seq + 1:
            self._lru.clear()
        self._last_mirror_seq = mirror_seq
        given = [None if item.frames is None else Entry(item.nbytes, tuple(item.frames)) for item in items]
        found = self._lru.move([item.mm_hash for item in items], given)
        served: list[Frames] = []
        missing: list[str] = []
        for entry, item in zip(found, items, strict=True):
            if entry is None or entry.nbytes != item.nbytes:
                missing.append(item.mm_hash)
            else:
                served.append(entry.value)
        if missing:
            raise CacheMiss(list(dict.fromkeys(missing)))
        return served

    def clear(self) -> None:
        """Drop every item; any message number may come next."""
        self._lru.clear()
        self._last_mirror_seq = None

    def contents(self) -> list[tuple[str, int]]:
        return self._lru.contents()

    def check_integrity(self) -> None:
        self._lru.check_integrity()
