"""The items of requests that do not lie in the ring: the frames in which they came, now or, in mode `lru`, once.

Kept until their request ends, and forwarded to the workers as they are; nothing is decoded here. In mode `lru` each
message first moves the receiver cache, whatever becomes of the request: its sender's mirror has moved too.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine.server.receiver_cache import ReceivedItem, engine_receiver_cache_from_config
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from mmcached.wire.messages.engine import AddRequest
from mmcached.wire.messages.parts import Feature, Inline
from mmcached.wire.sockets.channels import Frame


class ItemFrames:
    """Frames by request and item."""

    def __init__(self, config: ServiceConfig) -> None:
        self._cache = engine_receiver_cache_from_config(config)
        self._frames: dict[int, list[Sequence[Frame]]] = {}

    def add(self, message: AddRequest, payload: Sequence[Frame]) -> None:
        """Keep the frames of a request's items.

        Raises:
            CacheMiss: items came without data and are not here; those that came with data are cached all the same.
            RemoteProtocolError: an item names frames that have not come; nothing is kept.
        """
        came = [_frames_of(index, feature, payload) for index, feature in enumerate(message.features)]
        if self._cache is not None and message.mirror_seq:
            items = [
                ReceivedItem(feature.mm_hash, feature.nbytes, frames)
                for feature, frames in zip(message.features, came, strict=True)
            ]
            self._frames[message.request_id] = list(self._cache.ingest(message.mirror_seq, items))
            return
        missing = [feature.mm_hash for feature in message.features if feature.payload is None]
        if missing:
            raise CacheMiss(list(dict.fromkeys(missing)))
        self._frames[message.request_id] = [frames or () for frames in came]

    def frames_of(self, request_id: int, index: int) -> Sequence[Frame]:
        return self._frames[request_id][index]

    def forget(self, request_id: int) -> None:
        """The request has ended; what is cached stays."""
        self._frames.pop(request_id, None)

    def clear_cache(self) -> None:
        """Forget what is cached; requests keep what they have."""
        if self._cache is not None:
            self._cache.clear_cache()

    def clear(self) -> None:
        """Another frontend has come: its mirror is empty, and so is this cache; no request is left."""
        self.clear_cache()
        self._frames.clear()


def _frames_of(index: int, feature: Feature, payload: Sequence[Frame]) -> Sequence[Frame] | None:
    where = feature.payload
    if not isinstance(where, Inline):
        return None
    end = where.first_frame + where.num_frames
    if end > len(payload):
        raise RemoteProtocolError(f"frames up to {end} are named, {len(payload)} came", f"features[{index}]")
    return payload[where.first_frame : end]
