"""Hands out records that were found: `Hit`, and the record of an answer that came inline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmcached.client.arguments import check_bool, invalid, text_of
from mmcached.client.store.tokens import token_of
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library, Record, decode_record_frames
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import LocalProtocolError, RemoteProtocolError
from mmcached.wire.handle import Handle
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

_LIBRARIES: tuple[Library, ...] = ("bytes", "numpy", *(("torch",) if DEFAULT_LIBRARY == "torch" else ()))


@dataclass(frozen=True, slots=True)
class Reading:
    """How records are handed out.

    Attributes:
        tensors: of which library.
        view: tensors in place instead of owned ones.
    """

    tensors: Library = DEFAULT_LIBRARY
    view: bool = False

    def __post_init__(self) -> None:
        if text_of(self.tensors) not in _LIBRARIES:
            names = "must be 'torch', 'numpy' or 'bytes'"
            limit = names if "torch" in _LIBRARIES else f"{names}; torch is not installed here"
            raise invalid("tensors", self.tensors, limit)
        check_bool("view", self.view)


def reading_of(tensors: Library, view: bool) -> Reading:
    """Return how to hand out records; raise InvalidRequest for what cannot be."""
    library: Any = text_of(tensors)
    if library in _LIBRARIES and (view is True or view is False):
        return _READINGS[library, view]
    return Reading(tensors, view)


_READINGS: dict[tuple[Library, bool], Reading] = {
    (library, view): Reading(library, view) for library in _LIBRARIES for view in (False, True)
}


class Hit(Closeable):
    """A record that was found. As a context manager it lets go of the record at the end.

    With `view=True` the tensors of the record lie in the service's memory: **read them, never write**; an in-place
    operation on a torch view ends this process with SIGSEGV (numpy refuses). The lease goes back when the last tensor
    made from them has died, in whatever thread, so also after `with`, and after the client was closed.

    >>> with Hit({"grid": [1, 2]}) as hit:
    ...     hit.record["grid"]
    [1, 2]
    """

    __slots__ = ("__weakref__", "_place", "_record")

    def __init__(self, record: Record, place: Handle | None = None) -> None:
        self._record: Record | None = record
        self._place = place

    @property
    def record(self) -> Record:
        """The nested record of tensors.

        Raises:
            LocalProtocolError: the hit was closed.
        """
        if self._record is None:
            raise LocalProtocolError("this hit is closed; take the record out before the end of `with`")
        return self._record

    @property
    def token(self) -> str | None:
        """The name of this hit's lease, for `open` in another process; None if it has none, because it is a copy.

        Raises:
            LocalProtocolError: the hit was closed.
        """
        _ = self.record
        return None if self._place is None else token_of(self._place)

    def close(self) -> None:
        """Let go of the record; what was taken out of it stays valid. A second call does nothing."""
        self._record = None


def inline_record(place: Inline, payload: Sequence[Frame], reading: Reading) -> Record:
    """Read a record that came as frames of its answer; views of them, or owned.

    Raises:
        RemoteProtocolError: the frames are not there, or not a record.
        InvalidRequest: a dtype that the wanted library does not have.
    """
    end = place.first_frame + place.num_frames
    if end > len(payload):
        raise RemoteProtocolError(f"frames up to {end} of {len(payload)}", "records")
    frames = list(payload[place.first_frame : end])
    if reading.view:
        frames = [memoryview(frame).toreadonly() for frame in frames]
    else:
        # Whoever owns a tensor may write into it.
        frames[1:] = [bytearray(frame) if memoryview(frame).readonly else frame for frame in frames[1:]]
    return decode_record_frames(frames, tensors=reading.tensors)
