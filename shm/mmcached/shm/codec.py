"""A record (nested dicts and lists of tensors and plain values) as bytes, with the tensors ready to be read in place.

    ┌────────────────────┬─────────────────────┬───┬──────────┬───┬──────────┬ …
    │ preamble, 16 bytes │ MessagePack header  │ 0 │ tensor 0 │ 0 │ tensor 1 │        each tensor at a multiple of 64
    └────────────────────┴─────────────────────┴───┴──────────┴───┴──────────┴ …
     magic and version (8), header bytes (u32), number of tensors (u32)

    header = [tree, [[dtype, shape], …]]     in the tree a tensor is extension 1 with its number (u32)

All sizes follow from the header, so they can't contradict each other. As frames, frame 0 is preamble and header, and
each tensor is one more frame. No pickle, and no name in the bytes is looked up anywhere but in fixed tables.

Knows nothing of rings. What is encoded decodes to equal values, bit for bit; whatever the bytes are, decoding gives a
record or a `RemoteProtocolError`, and never reads outside them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgpack
import numpy as np

from mmcached.shm.crash_points import crash_point
from mmcached.shm.layout import ALIGNMENT, round_up
from mmcached.shm.tensor_bytes import Bytes1D, TensorType, dense_bytes, is_tensor, to_bytes, to_numpy, to_torch
from mmcached.wire.errors import InvalidRequest, ItemTooLarge, LocalProtocolError, RemoteProtocolError

Record = dict[str, Any]
Library = Literal["numpy", "torch"]
Frame = bytes | bytearray | memoryview

MAX_DEPTH = 32
"""How deep lists and dicts may nest."""
MAX_BYTES = 1 << 46
"""More than any ring takes."""

_PREAMBLE = struct.Struct("<8sII")
_MAGIC = b"MMREC\0\0\1"
_TENSOR = 1
_INDEX = struct.Struct("<I")
_PLAIN = (bool, float, str, bytes, type(None))


class EncodedRecord:
    """A record that is ready to be written; tensors are referred to, not copied, if they are contiguous.

    Attributes:
        nbytes: size of the encoded record.
    """

    def __init__(self, header: bytes, pieces: list[Bytes1D]) -> None:
        self._header = header
        self._pieces = pieces
        self.nbytes, self._offsets = _place(len(header), [piece.nbytes for piece in pieces])

    def write_into(self, buffer: Any) -> None:
        """Fill a writable buffer of at least `nbytes`: a memoryview, or a `(n,)` array of uint8.

        Raises:
            LocalProtocolError: the buffer is too small; nothing was written.
        """
        target = np.frombuffer(buffer, np.uint8)
        if target.nbytes < self.nbytes:
            raise LocalProtocolError(f"the record has {self.nbytes} bytes, the buffer {target.nbytes}")
        end = len(self._header)
        target[:end] = np.frombuffer(self._header, np.uint8)
        for offset, piece in zip(self._offsets, self._pieces, strict=True):
            target[end:offset] = 0
            end = offset + piece.nbytes
            crash_point("put.mid_payload")
            np.copyto(target[offset:end], piece)  # lets go of the GIL, unlike a memoryview's slice

    def frames(self) -> list[Frame]:
        """Return header and tensors as message frames; the tensors' memory is not copied."""
        return [self._header, *(piece.data for piece in self._pieces)]


def encode(record: Record, *, max_bytes: int = MAX_BYTES) -> EncodedRecord:
    """Describe a record; its tensors are not copied yet, except those that are not contiguous.

    Leaves are numpy arrays, CPU tensors of torch, int, float, bool, str, bytes and None.

    Args:
        max_bytes: of the tensors together; judged before any of them is copied.
    Raises:
        InvalidRequest: something else is in it; names the path, as `$.pixels[0]`.
        ItemTooLarge: its tensors have more than `max_bytes`.
    """
    if type(record) is not dict:
        raise InvalidRequest("$", type(record).__name__, "a record is a dict")
    walk = _Describe(max_bytes)
    tree = walk.value(record, "$", 1)
    try:
        packed = msgpack.packb([tree, walk.table])
    except (ValueError, UnicodeEncodeError, OverflowError) as error:  # such as a lone surrogate in a string
        raise InvalidRequest("$", type(error).__name__, f"cannot be packed: {error}") from error
    header = _PREAMBLE.pack(_MAGIC, len(packed), len(walk.pieces)) + packed
    return EncodedRecord(header, walk.pieces)


def decode(buffer: Bytes1D, *, tensors: Library, copy: bool = False) -> Record:
    """Read a record in place.

    Args:
        buffer: `(nbytes,)` uint8, exactly one record.
        tensors: which library's tensors to make.
        copy: make owned tensors. Otherwise they are views that keep `buffer` (the array itself) alive.
    Raises:
        RemoteProtocolError: these bytes are not one record.
        InvalidRequest: a dtype that the wanted library does not have.
    """
    start = bytes(buffer[: _PREAMBLE.size])
    header_bytes, _ = _read_preamble(start)
    tree, kinds = _read_header(start + bytes(buffer[_PREAMBLE.size : header_bytes]), header_bytes)
    nbytes, offsets = _place(header_bytes, [kind.nbytes for kind in kinds])
    if nbytes != buffer.nbytes:
        raise RemoteProtocolError(f"a record of {nbytes} bytes in {buffer.nbytes}", "record")
    # Through a memoryview: an array made of it refers to `buffer` itself and not to what `buffer` may be a slice of.
    whole = buffer.data
    pieces = [_piece(whole, kind.nbytes, offset) for kind, offset in zip(kinds, offsets, strict=True)]
    return _assemble(tree, kinds, pieces, tensors, copy=copy)


def decode_frames(frames: Sequence[Frame], *, tensors: Library) -> Record:
    """Read a record that came as frames; its tensors are views that keep their frames alive.

    Raises:
        RemoteProtocolError, InvalidRequest: as `decode`.
    """
    if not frames:
        raise RemoteProtocolError("a record has at least one frame", "record")
    head = bytes(frames[0])
    header_bytes, _ = _read_preamble(head)
    tree, kinds = _read_header(head, header_bytes)
    if len(head) != header_bytes or len(frames) != 1 + len(kinds):
        raise RemoteProtocolError(f"{len(frames)} frames for {len(kinds)} tensors", "record")
    views = [memoryview(frame) for frame in frames[1:]]
    for index, (view, kind) in enumerate(zip(views, kinds, strict=True)):
        if view.nbytes != kind.nbytes:
            raise RemoteProtocolError(f"{view.nbytes} bytes, its type says {kind.nbytes}", f"record.tensors[{index}]")
    pieces = [_piece(view, kind.nbytes, 0) for view, kind in zip(views, kinds, strict=True)]
    return _assemble(tree, kinds, pieces, tensors, copy=False)


def split(buffer: Bytes1D) -> list[Frame]:
    """Copy an encoded record out as the message frames that `EncodedRecord.frames` would have made of it.

    Raises:
        RemoteProtocolError: these bytes are not one record.
    """
    start = bytes(buffer[: _PREAMBLE.size])
    header_bytes, _ = _read_preamble(start)
    head = start + bytes(buffer[_PREAMBLE.size : header_bytes])
    _, kinds = _read_header(head, header_bytes)
    nbytes, offsets = _place(header_bytes, [kind.nbytes for kind in kinds])
    if nbytes != buffer.nbytes:
        raise RemoteProtocolError(f"a record of {nbytes} bytes in {buffer.nbytes}", "record")
    tensors = [bytes(buffer[offset : offset + kind.nbytes]) for kind, offset in zip(kinds, offsets, strict=True)]
    return [head, *tensors]


def _place(header_bytes: int, sizes: Sequence[int]) -> tuple[int, list[int]]:
    """Return the record's size and the offset of each tensor."""
    end, offsets = header_bytes, []
    for size in sizes:
        offsets.append(round_up(end, ALIGNMENT))
        end = offsets[-1] + size
    return end, offsets


def _read_preamble(start: bytes) -> tuple[int, int]:
    """Return the size of preamble and header together, and the number of tensors."""
    if len(start) < _PREAMBLE.size:
        raise RemoteProtocolError(f"{len(start)} bytes are too few for a record", "record")
    magic, header_bytes, num_tensors = _PREAMBLE.unpack_from(start)
    if magic != _MAGIC:
        raise RemoteProtocolError(f"it begins with {magic!r}, not {_MAGIC!r}", "record.magic")
    return _PREAMBLE.size + header_bytes, num_tensors


def _read_header(head: bytes, header_bytes: int) -> tuple[Any, list[TensorType]]:
    _, num_tensors = _read_preamble(head)
    try:
        header = msgpack.unpackb(memoryview(head)[_PREAMBLE.size : header_bytes], strict_map_key=True)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"not MessagePack: {type(error).__name__}", "record.header") from error
    if not (isinstance(header, list) and len(header) == 2 and type(header[0]) is dict and isinstance(header[1], list)):
        raise RemoteProtocolError("not [tree, tensors]", "record.header")
    tree, table = header
    if len(table) != num_tensors:
        raise RemoteProtocolError(f"{len(table)} tensors, the preamble says {num_tensors}", "record.tensors")
    kinds = []
    for index, entry in enumerate(table):
        field = f"record.tensors[{index}]"
        if not isinstance(entry, list) or len(entry) != 2:
            raise RemoteProtocolError("not [dtype, shape]", field)
        kinds.append(TensorType.checked(entry[0], entry[1], field))
    return tree, kinds


def _piece(view: memoryview, nbytes: int, offset: int) -> Bytes1D:
    return np.frombuffer(view, np.uint8, nbytes, offset) if nbytes else np.empty(0, np.uint8)


def _assemble(tree: Any, kinds: list[TensorType], pieces: list[Bytes1D], tensors: Library, *, copy: bool) -> Record:
    """Put the tensors into the tree. Each must occur in it exactly once."""
    walk = _Fill(kinds, pieces, tensors, copy=copy)
    record: Record = walk.value(tree, "$", 1)
    if len(walk.used) != len(kinds):
        raise RemoteProtocolError(f"{len(kinds) - len(walk.used)} tensors do not occur in the record", "record.tensors")
    return record


# The two walks are objects and not functions inside functions: a recursive closure refers to itself, and that cycle
# would keep the tensors, and with them a lease, until some later garbage collection.


class _Describe:
    """Turns a record into what MessagePack can carry, and collects the tensors' types and bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.table: list[tuple[str, tuple[int, ...]]] = []
        self.pieces: list[Bytes1D] = []
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def value(self, value: Any, path: str, depth: int) -> Any:
        if is_tensor(value):
            self._num_bytes += dense_bytes(value)
            if self._num_bytes > self._max_bytes:
                raise ItemTooLarge(self._num_bytes, self._max_bytes, "record")
            kind, piece = to_bytes(value, path)
            self.table.append((kind.dtype, kind.shape))
            self.pieces.append(piece)
            return msgpack.ExtType(_TENSOR, _INDEX.pack(len(self.pieces) - 1))
        if type(value) in _PLAIN:
            return value
        if type(value) is int:
            if not -(2**63) <= value < 2**64:
                raise InvalidRequest(path, str(value), "integers have at most 64 bits")
            return value
        if depth > MAX_DEPTH:
            raise InvalidRequest(path, depth, f"lists and dicts nest at most {MAX_DEPTH} deep")
        if type(value) is list:
            return [self.value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        if type(value) is dict:
            for key in value:
                if type(key) is not str:
                    raise InvalidRequest(path, repr(key), "keys are strings")
            return {key: self.value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        raise InvalidRequest(path, type(value).__name__, "not a tensor, number, string, bytes, None, list or dict")


class _Fill:
    """The way back; nothing in the tree is trusted."""

    def __init__(self, kinds: list[TensorType], pieces: list[Bytes1D], tensors: Library, *, copy: bool) -> None:
        self.used: set[int] = set()
        self._kinds = kinds
        self._pieces = pieces
        self._make: Callable[..., Any] = {"numpy": to_numpy, "torch": to_torch}[tensors]
        self._copy = copy

    def value(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, msgpack.ExtType):
            return self._tensor(value, path)
        if type(value) is int or type(value) in _PLAIN:
            return value
        if depth > MAX_DEPTH:
            raise RemoteProtocolError(f"nests more than {MAX_DEPTH} deep", path)
        if isinstance(value, list):
            return [self.value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        if isinstance(value, dict):
            if not all(isinstance(key, str) for key in value):
                raise RemoteProtocolError("keys are strings", path)
            return {key: self.value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        raise RemoteProtocolError(f"a {type(value).__name__} does not belong here", path)

    def _tensor(self, reference: Any, path: str) -> Any:
        if reference.code != _TENSOR or len(reference.data) != _INDEX.size:
            raise RemoteProtocolError(f"extension {reference.code} of {len(reference.data)} bytes", path)
        (index,) = _INDEX.unpack(reference.data)
        if index >= len(self._kinds) or index in self.used:
            raise RemoteProtocolError(f"tensor {index} of {len(self._kinds)} is missing or occurs twice", path)
        self.used.add(index)
        return self._make(self._kinds[index], self._pieces[index], copy=self._copy)
