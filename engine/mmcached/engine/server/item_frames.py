"""Keeps the frames of items outside the ring, from their request's message until the request ends.

Frames are forwarded to the workers undecoded. In mode `lru` each message first updates the `frame_cache`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.cache.kinds import processor_cache_kind
from mmcached.cache.request_lru import RequestLRU
from mmcached.engine.server.frame_cache import FrameCache, ReceivedItem
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.messages.parts import Feature, Inline
from mmcached.wire.sockets.frames import Frame


class ItemFrames:
    """Frames by request and item index."""

    def __init__(self, config: ServiceConfig) -> None:
        is_mirrored = processor_cache_kind(config) == "lru"
        self._cache = FrameCache(RequestLRU(config.processor_cache_bytes)) if is_mirrored else None
        self._frames: dict[int, list[Sequence[Frame]]] = {}

    def add(self, message: AddRequest, payload: Sequence[Frame]) -> None:
        """Keep the frames of a request's items.

        Raises:
            CacheMiss: items were sent without data and are not cached; items with data are cached nevertheless.
            RemoteProtocolError: an item names frames that were not sent; nothing is kept.
        """
        came = [_frames_of(index, feature, payload) for index, feature in enumerate(message.features)]
        if self._cache is not None and message.mirror_seq:
            items = [
                ReceivedItem(feature.mm_hash, feature.nbytes, frames)
                for feature, frames in zip(message.features, came, strict=True)
                if not feature.has_output
            ]
            found = iter(self._cache.ingest(message.mirror_seq, items))
            self._frames[message.request_id] = [
                () if feature.has_output else next(found) for feature in message.features
            ]
            return
        missing = [
            feature.mm_hash for feature in message.features if feature.payload is None and not feature.has_output
        ]
        if missing:
            raise CacheMiss(list(dict.fromkeys(missing)))
        self._frames[message.request_id] = [frames or () for frames in came]

    def frames_of(self, request_id: int, index: int) -> Sequence[Frame]:
        return self._frames[request_id][index]

    def forget_request(self, request_id: int) -> None:
        self._frames.pop(request_id, None)

    def clear_cache(self) -> None:
        if self._cache is not None:
            self._cache.clear()

    def clear(self) -> None:
        """Drop everything for a new frontend, whose mirror is empty."""
        self.clear_cache()
        self._frames.clear()


def _frames_of(index: int, feature: Feature, payload: Sequence[Frame]) -> Sequence[Frame] | None:
    where = feature.payload
    if not isinstance(where, Inline):
        return None
    end = where.first_frame + where.num_frames
    if end > len(payload):
        raise RemoteProtocolError(f"frames up to {end} named, {len(payload)} received", f"features[{index}]")
    return payload[where.first_frame : end]
