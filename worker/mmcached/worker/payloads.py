"""PayloadReader reads the items that plans name: in place in the ring, or from the plan's own frames.

Knows nothing of leases, which the engine holds and gives back: a read only tells when its view is gone. Writes no word
of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmcached.shm import ObjectStoreReader
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.errors import CacheMiss, RemoteProtocolError
from mmcached.wire.handle import Handle
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

Record = Mapping[str, Any]


class PayloadReader:
    """The way from a payload to a record of tensors.

    Args:
        store: the ring under the engine's row; None when every item travels inline.
    """

    def __init__(self, store: ObjectStoreReader | None) -> None:
        self._store = store

    def read(
        self,
        payload: Handle | Inline | None,
        frames: Sequence[Frame],
        *,
        mm_hash: str,
        on_release: Callable[[], None] | None = None,
    ) -> Record:
        """Return the record of one item.

        Args:
            on_release: called once, in any thread, when the last view of an item in the ring is gone; not for inline
                items.
        Returns:
            the record; tensors of an item in the ring are views of read-only memory: never write to them.
        Raises:
            CacheMiss: there is no payload, or no ring to find it in.
            StaleHandle: the handle is of another ring, or was overwritten.
            RemoteProtocolError: the frames are not there, or are no record.
        """
        if isinstance(payload, Inline):
            end = payload.first_frame + payload.num_frames
            if end > len(frames):
                raise RemoteProtocolError(f"frames up to {end} are named, {len(frames)} came", "encode.payload")
            record = decode_record_frames(frames[payload.first_frame : end], tensors="torch")
        elif payload is None or self._store is None:
            raise CacheMiss([mm_hash])
        else:
            record = self._store.get(payload, tensors="torch", on_release=on_release)
        if not isinstance(record, Mapping):
            raise RemoteProtocolError(f"item {mm_hash} is no record of named tensors", "encode.payload")
        return record
