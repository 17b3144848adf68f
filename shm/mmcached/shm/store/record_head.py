"""Parses and checks the head of an encoded record, preamble and MessagePack header, once for equal bytes.

    ┌────────────────────┬─────────────────────┐
    │ preamble, 16 bytes │ MessagePack header  │      header = [tree, [[dtype, shape], …]]
    └────────────────────┴─────────────────────┘      in the tree a tensor is extension 1 with its number (u32)
     magic and version (8), header bytes (u32), number of tensors (u32)

For any bytes, the result is a `Head` in which each tensor occurs exactly once, or a `RemoteProtocolError`
that names the place without its content. A head that is too large is refused by its preamble, before it is parsed.
Images of one size have one head, so the last few hundred heads are kept.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack
import msgspec

from mmcached.shm.segment.layout import ALIGNMENT, round_up
from mmcached.shm.store.tensor_bytes import TensorType
from mmcached.wire.errors import RemoteProtocolError

MAX_DEPTH = 32
"""Maximum nesting of lists and dicts."""
MAX_ELEMENTS = 1 << 15
"""Maximum of list items and keys of one record. Longer lists belong in a tensor."""
MAX_HEAD_BYTES = 1 << 19
"""A head is parsed on its receiver's event loop, in at most some milliseconds. Put long strings into a tensor."""
MAX_TENSORS = 4000
"""Each is a frame of a message, see `MAX_MESSAGE_FRAMES`."""
PREAMBLE = struct.Struct("<8sII")
TENSOR_CODE = 1
PLAIN = frozenset((bool, float, str, bytes, type(None)))
_LEAVES = PLAIN | {int}  # MessagePack limits its range

FORMAT_VERSION = 1
_MAGIC = b"MMREC\0\0" + bytes([FORMAT_VERSION])
_INDEX = struct.Struct("<I")
_MAX_KEPT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Placeholder in a tree for tensor number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Head:
    """Parsed head. Shared by all records with equal heads: never change it.

    Attributes:
        tree: Dicts, lists and plain values, with a `TensorRef` for each tensor.
        tensors: Type of each, by number, and its offset in the record, bytes.
        nbytes: Size of the whole record.
    """

    tree: dict[str, Any]
    tensors: tuple[tuple[TensorType, int], ...]
    nbytes: int


def place(head_bytes: int, sizes: Iterable[int]) -> tuple[int, tuple[int, ...]]:
    """Return the size of a record, and the offset of each tensor: the next multiple of the alignment."""
    end, offsets = head_bytes, []
    for size in sizes:
        offsets.append(round_up(end, ALIGNMENT))
        end = offsets[-1] + size
    return end, tuple(offsets)


def pack_head(tree: Any, table: list[tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the encoded head of a tree with references made by `reference`, and of its tensors' types.

    Raises:
        ValueError, UnicodeEncodeError, OverflowError: MessagePack cannot carry a value.
    """
    packed = _encode((tree, table))
    return PREAMBLE.pack(_MAGIC, len(packed), len(table)) + packed


def reference(index: int) -> Any:
    """Return the placeholder of a tensor for a tree that will be packed."""
    return _REFERENCES[index] if index < len(_REFERENCES) else msgspec.msgpack.Ext(TENSOR_CODE, _INDEX.pack(index))


def read_preamble(start: memoryview) -> tuple[int, int]:
    """Return the bytes of the head and the number of tensors; raise RemoteProtocolError for an invalid preamble."""
    if len(start) < PREAMBLE.size:
        raise RemoteProtocolError(f"{len(start)} bytes are too few for a record", "record")
    magic, header_bytes, num_tensors = PREAMBLE.unpack_from(start)
    if magic != _MAGIC:
        raise RemoteProtocolError(f"it does not begin with {_MAGIC!r}", "record.magic")
    head_bytes = PREAMBLE.size + header_bytes
    if head_bytes > MAX_HEAD_BYTES:
        raise RemoteProtocolError(f"a head of {head_bytes} bytes, at most {MAX_HEAD_BYTES} are taken", "record.header")
    if num_tensors > MAX_TENSORS:
        raise RemoteProtocolError(f"{num_tensors} tensors, at most {MAX_TENSORS} are taken", "record.tensors")
    return head_bytes, num_tensors


def copy_head(record: memoryview) -> tuple[Head, bytes]:
    """Copy the head at the beginning of a record, and parse the copy, which the sender cannot change.

    Returns:
        The head of exactly one record of `len(record)` bytes, and its bytes.

    Raises:
        RemoteProtocolError: The bytes are not one valid record.
    """
    num_bytes = len(record)
    end = PREAMBLE.size + (PREAMBLE.unpack_from(record)[1] if num_bytes >= PREAMBLE.size else 0)
    if end > num_bytes or end > MAX_HEAD_BYTES:
        read_preamble(record)
        raise RemoteProtocolError(f"a head of {end} bytes in {num_bytes}", "record")
    packed = record[:end].tobytes()
    head = read_head(packed)
    if head.nbytes != num_bytes:
        raise RemoteProtocolError(f"a record of {head.nbytes} bytes in {num_bytes}", "record")
    return head, packed


def head_of(read: Callable[[int], memoryview], num_bytes: int) -> Head:
    """Return the head of a record of `num_bytes`.

    Args:
        read: Returns a copy of the given number of bytes from the record's beginning.

    Raises:
        RemoteProtocolError: The bytes are not one valid record. Errors of `read` are passed on.
    """
    start = read(min(num_bytes, _MAX_KEPT_BYTES))
    head_bytes, _ = read_preamble(start)
    if head_bytes > num_bytes:
        raise RemoteProtocolError(f"a head of {head_bytes} bytes in {num_bytes}", "record")
    head = read_head(bytes(start[:head_bytes] if head_bytes <= len(start) else read(head_bytes)))
    if head.nbytes != num_bytes:
        raise RemoteProtocolError(f"a record of {head.nbytes} bytes in {num_bytes}", "record")
    return head


def read_head(head: bytes) -> Head:
    """Parse a head of exactly the size in its preamble; raise RemoteProtocolError if it is invalid."""
    return _read_kept(head) if len(head) <= _MAX_KEPT_BYTES else _read(head)


def _read(head: bytes) -> Head:
    head_bytes, num_tensors = read_preamble(memoryview(head))
    if head_bytes != len(head):
        raise RemoteProtocolError(f"a head of {len(head)} bytes says that it has {head_bytes}", "record")
    try:
        header = msgpack.unpackb(
            memoryview(head)[PREAMBLE.size :],
            strict_map_key=True,
            max_array_len=MAX_ELEMENTS,
            max_map_len=MAX_ELEMENTS,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"not MessagePack: {type(error).__name__}", "record.header") from error
    if not (isinstance(header, list) and len(header) == 2 and type(header[0]) is dict and isinstance(header[1], list)):
        raise RemoteProtocolError("not [tree, tensors]", "record.header")
    tree, table = header
    if len(table) != num_tensors:
        raise RemoteProtocolError(f"{len(table)} tensors, the preamble says {num_tensors}", "record.tensors")
    types = tuple(_tensor_type(entry, f"record.tensors[{index}]") for index, entry in enumerate(table))
    walk = _Check(num_tensors)
    try:
        checked = walk.value(tree, 1)
    except _Wrong as wrong:
        raise RemoteProtocolError(wrong.reason, wrong.path()) from None
    if len(walk.used) != num_tensors:
        num_missing = num_tensors - len(walk.used)
        raise RemoteProtocolError(f"{num_missing} tensors do not occur in the record", "record.tensors")
    nbytes, offsets = place(len(head), [each.nbytes for each in types])
    return Head(checked, tuple(zip(types, offsets, strict=True)), nbytes)


_read_kept = lru_cache(maxsize=256)(_read)


def _tensor_type(entry: Any, field: str) -> TensorType:
    if not isinstance(entry, list) or len(entry) != 2:
        raise RemoteProtocolError("not [dtype, shape]", field)
    return TensorType.checked(entry[0], entry[1], field)


class _Wrong(Exception):
    """Invalid value; its path is put together while the exception propagates, so that valid values cost nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.steps: list[str] = []  # innermost first

    def path(self) -> str:
        """Return the path to the value, without text from the record: dict entries are numbered."""
        return "$" + "".join(reversed(self.steps))


class _Check:
    """Checks the tree of a head; `used` are the numbers of the tensors found so far."""

    def __init__(self, num_tensors: int) -> None:
        self.used: set[int] = set()
        self._num_tensors = num_tensors
        self._num_elements = 0

    def value(self, value: Any, depth: int) -> Any:
        """Return the tree in which references are `TensorRef`."""
        if type(value) in _LEAVES:
            return value
        if isinstance(value, msgpack.ExtType):
            return self._reference(value)
        if depth > MAX_DEPTH:
            raise _Wrong(f"nests more than {MAX_DEPTH} deep")
        if not isinstance(value, list | dict):
            raise _Wrong(f"a {type(value).__name__} does not belong here")
        self._num_elements += len(value)
        if self._num_elements > MAX_ELEMENTS:
            raise _Wrong(f"more than {MAX_ELEMENTS} list items and keys")
        if isinstance(value, list):
            return self._list(value, depth)
        if not all(isinstance(key, str) for key in value):
            raise _Wrong("keys are strings")
        return self._dict(value, depth)

    def _list(self, items: list[Any], depth: int) -> list[Any]:
        checked: list[Any] = []
        try:
            for item in items:
                checked.append(item if type(item) in _LEAVES else self.value(item, depth + 1))  # noqa: PERF401 (the handler counts them)
        except _Wrong as wrong:
            wrong.steps.append(f"[{len(checked)}]")
            raise
        return checked

    def _dict(self, items: dict[str, Any], depth: int) -> dict[str, Any]:
        checked: dict[str, Any] = {}
        try:
            for key, item in items.items():
                checked[key] = self.value(item, depth + 1)
        except _Wrong as wrong:
            wrong.steps.append(f".{{{len(checked)}}}")
            raise
        return checked

    def _reference(self, found: Any) -> TensorRef:
        if found.code != TENSOR_CODE or len(found.data) != _INDEX.size:
            raise _Wrong(f"extension {found.code} of {len(found.data)} bytes")
        (index,) = _INDEX.unpack(found.data)
        if index >= self._num_tensors or index in self.used:
            raise _Wrong(f"tensor {index} of {self._num_tensors} is missing or occurs twice")
        self.used.add(index)
        return TensorRef(index)


_REFERENCES = tuple(msgspec.msgpack.Ext(TENSOR_CODE, _INDEX.pack(index)) for index in range(64))
_encode = msgspec.msgpack.Encoder().encode  # a quarter of `msgpack.packb`'s time; parsing needs msgpack's limits
