"""Found records: `Hit`, and decoding of records that came inline in an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mmcached.client.arguments import check_bool, invalid, text_of
from mmcached.shm.store.codec import DEFAULT_LIBRARY, Library, Record, decode_record_frames, leaves_of
from mmcached.shm.store.tensor_bytes import dense_bytes, is_tensor
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import InvalidRequest, LocalProtocolError, RemoteProtocolError
from mmcached.wire.messages.parts import Inline
from mmcached.wire.sockets.frames import Frame

_MAX_SHOWN = 8
"""Maximum number of tensors that a text names."""
_LIBRARIES: tuple[Library, ...] = ("bytes", "numpy", *(("torch",) if DEFAULT_LIBRARY == "torch" else ()))


@dataclass(frozen=True, slots=True)
class Reading:
    """The form in which records are returned to the caller.

    Attributes:
        tensors: Library of the tensors.
        view: Whether tensors lie in shared memory; else the caller owns them.
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
    """Return the cached `Reading` of valid arguments; raise `InvalidRequest` for invalid ones."""
    library: Any = tensors if type(tensors) is str else text_of(tensors)
    if library in _LIBRARIES and (view is True or view is False):
        return _READINGS[library, view]
    return Reading(tensors, view)


_READINGS: dict[tuple[Library, bool], Reading] = {
    (library, view): Reading(library, view) for library in _LIBRARIES for view in (False, True)
}


class Place(Protocol):
    """Where a record lies: a handle, or what the reader in C has in its place."""

    @property
    def token(self) -> str: ...


class Hit(Closeable):
    """A found record. As a context manager it releases the record at the end.

    With `view=True` the tensors of the record lie in the service's memory: **read them, never write**; an in-place
    operation on a torch view ends this process with SIGSEGV (numpy refuses). The lease is returned when the last tensor
    made from them has died, in any thread, also after `with` and after the client was closed.

    `hit["x"]` is `hit.record["x"]`; `"x" in hit` and `for name in hit` use the names of the record.

    >>> with Hit({"grid": [1, 2]}) as hit:
    ...     hit["grid"], "x" in hit, list(hit)
    ([1, 2], False, ['grid'])
    >>> hit
    Hit(closed)
    """

    __slots__ = ("__weakref__", "_place", "_record")

    def __init__(self, record: Record, place: Place | None = None) -> None:
        self._record: Record | None = record
        self._place = place

    @property
    def record(self) -> Record:
        """The nested record of tensors.

        Raises:
            LocalProtocolError: The hit was closed.
        """
        if self._record is None:
            raise LocalProtocolError("this hit is closed; take the record out before the end of `with`")
        return self._record

    def __getitem__(self, name: str) -> Any:
        """Return the value under a name of the record; raise `KeyError` if the record lacks it."""
        return self.record[name]

    def __contains__(self, name: object) -> bool:
        return name in self.record

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the record."""
        return iter(self.record)

    def __repr__(self) -> str:
        if self._record is None:
            return "Hit(closed)"
        tensors = self._tensors()
        shown = [f"{path}: {_type_of(tensor)} {tuple(tensor.shape)}" for path, tensor in tensors[:_MAX_SHOWN]]
        if len(tensors) > _MAX_SHOWN:
            shown.append(f"and {len(tensors) - _MAX_SHOWN} tensors more")
        num_bytes = sum(dense_bytes(tensor) for _, tensor in tensors)
        kind = "owned" if self._place is None else "view"
        return f"Hit({', '.join(shown) or 'no tensors'}; {num_bytes} bytes, {kind})"

    def tensor(self) -> Any:
        """Return the only tensor of the record.

        >>> import numpy
        >>> Hit({"name": "cat", "embeds": numpy.zeros(2)}).tensor()
        array([0., 0.])

        Raises:
            InvalidRequest: The record has no tensor, or several; the error names them.
            LocalProtocolError: The hit was closed.
        """
        tensors = self._tensors()
        if len(tensors) != 1:
            names = ", ".join(path for path, _ in tensors[:_MAX_SHOWN]) or "none"
            limit = "a record of one tensor; of another one take its tensors by name: hit[name]"
            raise InvalidRequest("tensor", f"{len(tensors)} tensors: {names}", limit)
        return tensors[0][1]

    def _tensors(self) -> list[tuple[str, Any]]:
        return [(path, leaf) for path, leaf in leaves_of(self.record) if is_tensor(leaf)]

    @property
    def token(self) -> str | None:
        """The name of this hit's lease, for `open` in another process; None for a copy, which has no lease.

        Raises:
            LocalProtocolError: The hit was closed.
        """
        _ = self.record
        return None if self._place is None else self._place.token

    def close(self) -> None:
        """Release the record; values that were taken out of it stay valid. A second call does nothing."""
        self._record = None


def _type_of(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def inline_record(place: Inline, payload: Sequence[Frame], reading: Reading) -> Record:
    """Decode a record from the frames of its answer, as views of the frames or as owned tensors.

    Raises:
        RemoteProtocolError: Frames are missing, or do not encode a record.
        InvalidRequest: The requested library does not have a dtype of the record.
    """
    end = place.first_frame + place.num_frames
    if end > len(payload):
        raise RemoteProtocolError(f"frames up to {end} of {len(payload)}", "records")
    frames = list(payload[place.first_frame : end])
    if reading.view:
        frames = [memoryview(frame).toreadonly() for frame in frames]
    else:
        # Owned tensors must be writable.
        frames[1:] = [bytearray(frame) if memoryview(frame).readonly else frame for frame in frames[1:]]
    return decode_record_frames(frames, tensors=reading.tensors)
