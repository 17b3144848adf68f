"""Keeps the frames of items that came once (mode `lru`), so that later requests may name them without data.

    ingest(seq, items)                       with data   -> kept, and served; the newest always wins
      seq is not the next one: clear first   without     -> served from here, or missed
      then one move of the whole request     all misses  -> one CacheMiss, after everything that came was kept

The frontend's mirror has made the same move (`mmcached.cache.request_lru`), with the same sizes, before this message
left it; so a message is ingested before anything else in it is judged. Nothing is decoded here.

Source: vLLM's `MultiModalReceiverCache`, and its later typed miss; the first kept an old payload when a new one came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mmcached.cache.request_lru import Entry, RequestLRU
from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from mmcached.wire.sockets.frames import Frame

Frames = tuple[Frame, ...]


class ReceivedItem(NamedTuple):
    """One item of a request as it came.

    Attributes:
        nbytes: size of the encoded item, whether it came or not.
        frames: the encoded item; None if it should be here.
    """

    mm_hash: str
    nbytes: int
    frames: Sequence[Frame] | None


class FrameCache:
    """Key -> frames of an item. Its `lru` is given empty, with the capacity of the frontend's mirror."""

    def __init__(self, lru: RequestLRU[Frames]) -> None:
        self._lru = lru
        self._last_mirror_seq: int | None = None

    def ingest(self, mirror_seq: int, items: Sequence[ReceivedItem]) -> list[Frames]:
        """Take a message's items in, and return the frames of each, in prompt order.

        Args:
            mirror_seq: the message's number, from 1 on.
        Raises:
            CacheMiss: names all that came without data and are not here, or have another size here, each once, in
                order. The others are kept.
            RemoteProtocolError: no number, or an item larger than it says; nothing has changed, and the next message
                will show a gap.
        """
        if mirror_seq < 1:
            raise RemoteProtocolError("the sender keeps no mirror, the receiver does", "mirror_seq")
        for index, item in enumerate(items):
            nbytes = 0 if item.frames is None else sum(memoryview(frame).nbytes for frame in item.frames)
            if nbytes > item.nbytes:
                reason = f"{nbytes} bytes came, {item.nbytes} were stated"
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
        """Forget every item; any number may come next."""
        self._lru.clear()
        self._last_mirror_seq = None

    def contents(self) -> list[tuple[str, int]]:
        """Return `(key, bytes)` of all entries, the oldest first."""
        return self._lru.contents()

    def check_integrity(self) -> None:
        self._lru.check_integrity()
