"""Encodes records, nested dicts and lists of tensors and plain values, as bytes; tensors can be read in place.

    ┌────────────────────┬───┬──────────┬───┬──────────┬ …
    │ head (record_head) │ 0 │ tensor 0 │ 0 │ tensor 1 │        each tensor at a multiple of 64
    └────────────────────┴───┴──────────┴───┴──────────┴ …

All sizes follow from the head, so they cannot contradict each other. As frames, frame 0 is the head, and each tensor is
one more frame; or the whole record, as above, is the only frame. No pickle, and no name in the bytes is looked up
anywhere but in fixed tables.

Knows nothing of rings. Invariant: an encoded record decodes to equal values, bit for bit; for any bytes,
decoding gives a record or a `RemoteProtocolError`, and never reads outside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np

from mmcached.shm.crash_points import crash_point
from mmcached.shm.store.record_head import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    MAX_HEAD_BYTES,
    MAX_TENSORS,
    PLAIN,
    Head,
    TensorRef,
    copy_head,
    pack_head,
    place,
    read_head,
    read_preamble,
    reference,
)
from mmcached.shm.store.tensor_bytes import (
    Bytes1D,
    Description,
    NotCarried,
    bytes_of,
    dense_bytes,
    is_tensor,
    to_bytes,
    to_numpy,
    to_torch,
)
from mmcached.wire.errors import InvalidRequest, ItemTooLarge, LocalProtocolError, MmcachedError, RemoteProtocolError

Record = dict[str, Any]
Library = Literal["numpy", "torch", "bytes"]
DEFAULT_LIBRARY: Library = "numpy" if find_spec("torch") is None else "torch"
"""Library of decoded tensors if the caller names none: torch, if it is installed."""
Frame = bytes | bytearray | memoryview

_KEY_EXCERPT = 40
MAX_BYTES = 1 << 46
"""Larger than any ring."""


class EncodedRecord:
    """Record of `nbytes` that is ready to be written; contiguous tensors are referred to, not copied."""

    def __init__(self, head: bytes, pieces: list[Bytes1D]) -> None:
        self._head = head
        self._pieces = pieces
        self.nbytes, self._offsets = place(len(head), map(len, pieces))

    def write_into(self, buffer: Any) -> None:
        """Fill a writable buffer, a memoryview or a `(n,)` uint8 array; LocalProtocolError if it is too small."""
        target = np.frombuffer(buffer, np.uint8)
        if target.nbytes < self.nbytes:
            raise LocalProtocolError(f"the record has {self.nbytes} bytes, the buffer {target.nbytes}")
        end = len(self._head)
        data = target.data
        data[:end] = self._head
        for offset, piece in zip(self._offsets, self._pieces, strict=True):
            data[end:offset] = bytes(offset - end)
            end = offset + piece.nbytes
            crash_point("put.mid_payload")
            np.copyto(target[offset:end], piece)  # releases the GIL, unlike a memoryview's slice

    def frames(self) -> list[Frame]:
        """Return head and tensors as message frames; the tensors' memory is not copied."""
        return [self._head, *(piece.data for piece in self._pieces)]

    def joined(self) -> bytes:
        """Return a copy of the whole record."""
        parts: list[Frame] = [self._head]
        end = len(self._head)
        for offset, piece in zip(self._offsets, self._pieces, strict=True):
            parts += (bytes(offset - end), piece.data)
            end = offset + len(piece)
        return b"".join(parts)


class JoinedRecord(EncodedRecord):
    """Record that arrived as one frame, was checked, and does not change."""

    def __init__(self, whole: memoryview) -> None:
        self._whole = whole
        self.nbytes = whole.nbytes

    def write_into(self, buffer: Any) -> None:
        whole, target, end = self._whole, memoryview(buffer), self.nbytes
        if target.nbytes < end:
            raise LocalProtocolError(f"the record has {end} bytes, the buffer {target.nbytes}")
        middle = end // 2
        target[:middle] = whole[:middle]
        crash_point("put.mid_payload")
        target[middle:end] = whole[middle:]

    def frames(self) -> list[Frame]:
        return adopt(np.frombuffer(self._whole, np.uint8)).frames()

    def joined(self) -> bytes:
        return self._whole.tobytes()


def encode(record: Record, *, max_bytes: int = MAX_BYTES) -> EncodedRecord:
    """Encode a record's head; its tensors are not copied yet, except those that are not contiguous.

    Leaves are numpy arrays, CPU tensors of torch, int, float, bool, str, bytes and None.

    Args:
        max_bytes: Limit of the tensors together; checked before any of them is copied.

    Raises:
        InvalidRequest: It contains another type, or exceeds a limit; names the path, like `$.pixels[0]`.
        ItemTooLarge: Its tensors have more than `max_bytes`.
    """
    if type(record) is not dict:
        raise InvalidRequest("$", type(record).__name__, "a record is a dict")
    walk = _Describe(max_bytes)
    try:
        tree = walk.value(record, 1)
    except NotCarried as wrong:
        raise InvalidRequest(_path(wrong), wrong.found, wrong.limit) from wrong.__cause__
    try:
        head = pack_head(tree, walk.table)
    except (ValueError, UnicodeEncodeError, OverflowError) as error:  # such as a lone surrogate in a string
        raise InvalidRequest("$", type(error).__name__, "it cannot be packed") from error
    if len(head) > MAX_HEAD_BYTES:
        limit = f"at most {MAX_HEAD_BYTES} bytes beside its tensors; put long lists, strings and bytes into an array"
        raise InvalidRequest("$", f"{len(head)} bytes", limit)
    return EncodedRecord(head, walk.pieces)


def decode(buffer: Bytes1D, *, tensors: Library, copy: bool = False) -> Record:
    """Decode a record in place.

    Args:
        buffer: `(nbytes,)` uint8, exactly one record.
        tensors: Library of the tensors to make; "bytes": the bytes of each tensor, `(nbytes,)` uint8, for any dtype.
        copy: Make owned tensors. Otherwise they are views that keep `buffer` (the array itself) alive.

    Raises:
        RemoteProtocolError: The bytes are not one valid record.
        InvalidRequest: A dtype that the library does not have.
    """
    # Arrays made from a memoryview refer to `buffer` itself, and not to an array of which `buffer` may be a slice.
    whole = buffer.data
    head, _ = copy_head(whole)
    make, made = MAKERS[tensors], []
    for kind, offset in head.tensors:  # not a list comprehension, which costs one more call
        made.append(make(kind, whole, offset, copy))
    return _fill(head.tree, made)  # type: ignore[no-any-return]  # a head's tree is a dict


def decode_record_frames(frames: Sequence[Frame], *, tensors: Library) -> Record:
    """Decode a record that arrived as frames; its tensors are views that keep the frames alive. Raises as `decode`."""
    head, _, views = _read_frames(frames)
    make = MAKERS[tensors]
    made = [make(kind, view, 0, False) for (kind, _), view in zip(head.tensors, views, strict=True)]
    return _fill(head.tree, made)  # type: ignore[no-any-return]


def adopt_frames(frames: Sequence[Frame]) -> EncodedRecord:
    """Check a record that arrived as frames, as decoding does, and make it ready to be written, without a copy.

    Args:
        frames: Its head, and one for each tensor; or the whole record as the only one.
    """
    if len(frames) == 1:
        whole = memoryview(frames[0]).cast("B")
        copy_head(whole)
        return JoinedRecord(whole)
    _, packed, views = _read_frames(frames)
    pieces = [np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8) for view in views]
    return EncodedRecord(packed, pieces)


def adopt(buffer: Bytes1D) -> EncodedRecord:
    """Check a record, as `adopt_frames` does, in memory that its sender may still change.

    A copy of its head is checked. So later writes there change values of the tensors, never their sizes.
    """
    head, packed = copy_head(buffer.data)
    return EncodedRecord(packed, [buffer[offset : offset + kind.nbytes] for kind, offset in head.tensors])


def _read_frames(frames: Sequence[Frame]) -> tuple[Head, bytes, list[memoryview]]:
    """Return the parsed head, its bytes, and the bytes of each tensor."""
    if not frames:
        raise RemoteProtocolError("a record has at least one frame", "record")
    first = memoryview(frames[0]).cast("B")
    _, num_tensors = read_preamble(first)
    if len(frames) != 1 + num_tensors:
        raise RemoteProtocolError(f"{len(frames)} frames for {num_tensors} tensors", "record")
    packed = bytes(first)
    head = read_head(packed)
    views = [memoryview(frame).cast("B") for frame in frames[1:]]
    for index, (view, (kind, _)) in enumerate(zip(views, head.tensors, strict=True)):
        if view.nbytes != kind.nbytes:
            raise RemoteProtocolError(f"{view.nbytes} bytes, its type says {kind.nbytes}", f"record.tensors[{index}]")
    return head, packed, views


def _fill(value: Any, made: list[Any]) -> Any:
    """Return a copy of a tree, with new lists and dicts and with the tensors in their places."""
    # At module level: an inner function that calls itself refers to itself, and that cycle would keep the tensors, and
    # with them a lease, until some later garbage collection.
    kind = type(value)
    if kind is TensorRef:
        return made[value.index]
    if kind is dict:
        filled = {}
        for key, item in value.items():  # most records are one dict of tensors: a comprehension costs one more call
            filled[key] = made[item.index] if type(item) is TensorRef else _fill(item, made)
        return filled
    if kind is list:
        return [_fill(item, made) for item in value]
    return value


def leaves_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a record or of a head's tree, each with its path.

    >>> list(leaves_of({"a": {"b": [1, 2]}, "c": None}))
    [('a.b[0]', 1), ('a.b[1]', 2), ('c', None)]
    """
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves_of(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves_of(part, f"{path}[{index}]")
    else:
        yield path, value


MAKERS: dict[Library, Callable[..., Any]] = {"numpy": to_numpy, "torch": to_torch, "bytes": bytes_of}


def _path(wrong: NotCarried) -> str:
    """Return the path to a value; long keys are shortened."""
    return "$" + "".join(_step(step) for step in reversed(wrong.steps))


def _step(step: int | str) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if len(step) > _KEY_EXCERPT:
        return f"[{step[:_KEY_EXCERPT]!r}…]"
    return f".{step}" if step.isidentifier() else f"[{step!r}]"


class _Describe:
    """Converts a record to values that MessagePack can carry, and collects the tensors' types and bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.table: list[Description] = []
        self.pieces: list[Bytes1D] = []
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_elements = 0

    def value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is np.ndarray:
            return self._tensor(value)
        if kind in PLAIN:
            return value
        if kind is int:
            if not -(2**63) <= value < 2**64:
                raise NotCarried(f"an integer of {value.bit_length()} bits", "integers have at most 64 bits")
            return value
        if kind is dict or kind is list:
            self._count(value, depth)
            return self._dict(value, depth) if kind is dict else self._list(value, depth)
        if is_tensor(value):
            return self._tensor(value)
        raise NotCarried(kind.__name__, "not a tensor, number, string, bytes, None, list or dict")

    def _count(self, items: Sized, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise NotCarried(depth, f"lists and dicts nest at most {MAX_DEPTH} deep")
        self._num_elements += len(items)
        if self._num_elements > MAX_ELEMENTS:
            limit = f"a record has at most {MAX_ELEMENTS} list items and keys; put long lists into an array"
            raise NotCarried(f"{self._num_elements} of them", limit)

    def _list(self, items: list[Any], depth: int) -> list[Any]:
        described: list[Any] = []
        try:
            for item in items:
                described.append(self.value(item, depth + 1))  # noqa: PERF401 (the handler needs those made so far)
        except NotCarried as wrong:
            wrong.steps.append(len(described))
            raise
        return described

    def _dict(self, items: dict[Any, Any], depth: int) -> dict[str, Any]:
        described: dict[str, Any] = {}
        for key, item in items.items():
            if type(key) is not str:
                raise NotCarried(f"a key of type {type(key).__name__}", "keys are strings")
            try:
                described[key] = self.value(item, depth + 1)
            except NotCarried as wrong:
                wrong.steps.append(key)
                raise
        return described

    def _tensor(self, tensor: Any) -> Any:
        if len(self.pieces) == MAX_TENSORS:
            raise NotCarried(f"more than {MAX_TENSORS} tensors", f"a record has at most {MAX_TENSORS} tensors")
        try:
            self._num_bytes += dense_bytes(tensor)
            if self._num_bytes > self._max_bytes:
                raise ItemTooLarge(self._num_bytes, self._max_bytes, "record")
            kind, piece = to_bytes(tensor)
        except (MmcachedError, NotCarried, MemoryError):
            raise
        except Exception as error:  # any error of a library for a tensor without dense bytes, such as a nested one
            raise NotCarried(f"{type(tensor).__name__}: {type(error).__name__}", "it has no dense bytes") from error
        self.table.append(kind)
        self.pieces.append(piece)
        return reference(len(self.pieces) - 1)
