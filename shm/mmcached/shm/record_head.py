"""The head of an encoded record: preamble and MessagePack header, read and judged whole, once for equal bytes.

    ┌────────────────────┬─────────────────────┐
    │ preamble, 16 bytes │ MessagePack header  │      header = [tree, [[dtype, shape], …]]
    └────────────────────┴─────────────────────┘      in the tree a tensor is extension 1 with its number (u32)
     magic and version (8), header bytes (u32), number of tensors (u32)

Whatever the bytes are, the outcome is a `Head` in which each tensor occurs exactly once, or a `RemoteProtocolError`
that names the place. Images of one size have one head, so the last few hundred heads are kept.

Knows nothing of tensors' bytes, nor of the libraries that make tensors of them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack

from mmcached.shm.layout import ALIGNMENT, round_up
from mmcached.shm.tensor_bytes import TensorType
from mmcached.wire.errors import RemoteProtocolError

MAX_DEPTH = 32
"""How deep lists and dicts may nest."""
PREAMBLE = struct.Struct("<8sII")
TENSOR_CODE = 1
PLAIN = frozenset((bool, float, str, bytes, type(None)))

_MAGIC = b"MMREC\0\0\1"
_INDEX = struct.Struct("<I")
_MAX_KEPT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TensorRef:
    """Stands in a tree for tensor number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class Head:
    """What a head says. Shared by all records with equal heads: never to be changed.

    Attributes:
        tree: dicts, lists and plain values, with a `TensorRef` for each tensor.
        types: of the tensors, by number.
        offsets: of the tensors in the record, bytes.
        nbytes: of the whole record.
    """

    tree: dict[str, Any]
    types: tuple[TensorType, ...]
    offsets: tuple[int, ...]
    nbytes: int


def place(head_bytes: int, sizes: list[int]) -> tuple[int, tuple[int, ...]]:
    """Return the size of a record, and the offset of each tensor: the next multiple of the alignment."""
    end, offsets = head_bytes, []
    for size in sizes:
        offsets.append(round_up(end, ALIGNMENT))
        end = offsets[-1] + size
    return end, tuple(offsets)


def pack_head(tree: Any, table: list[tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the head of a tree with references made by `reference`, and of its tensors' types.

    Raises:
        ValueError, UnicodeEncodeError, OverflowError: MessagePack cannot carry a value.
    """
    packed: bytes = msgpack.packb([tree, table])
    return PREAMBLE.pack(_MAGIC, len(packed), len(table)) + packed


def reference(index: int) -> Any:
    """Return what stands for a tensor in a tree that will be packed."""
    return _REFERENCES[index] if index < len(_REFERENCES) else msgpack.ExtType(TENSOR_CODE, _INDEX.pack(index))


def head_bytes(start: memoryview) -> int:
    """Return the size of the head of the record that begins here.

    Raises:
        RemoteProtocolError: no record begins here.
    """
    if len(start) < PREAMBLE.size:
        raise RemoteProtocolError(f"{len(start)} bytes are too few for a record", "record")
    magic, header_bytes, _ = PREAMBLE.unpack_from(start)
    if magic != _MAGIC:
        raise RemoteProtocolError(f"it begins with {magic!r}, not {_MAGIC!r}", "record.magic")
    return PREAMBLE.size + int(header_bytes)


def read_head(head: bytes) -> Head:
    """Read a head, of exactly `head_bytes` bytes.

    Raises:
        RemoteProtocolError: it is none.
    """
    return _read_kept(head) if len(head) <= _MAX_KEPT_BYTES else _read(head)


def _read(head: bytes) -> Head:
    expected = head_bytes(memoryview(head))
    if expected != len(head):
        raise RemoteProtocolError(f"a head of {len(head)} bytes says that it has {expected}", "record")
    _, _, num_tensors = PREAMBLE.unpack_from(head)
    try:
        header = msgpack.unpackb(memoryview(head)[PREAMBLE.size :], strict_map_key=True)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"not MessagePack: {type(error).__name__}", "record.header") from error
    if not (isinstance(header, list) and len(header) == 2 and type(header[0]) is dict and isinstance(header[1], list)):
        raise RemoteProtocolError("not [tree, tensors]", "record.header")
    tree, table = header
    if len(table) != num_tensors:
        raise RemoteProtocolError(f"{len(table)} tensors, the preamble says {num_tensors}", "record.tensors")
    types = tuple(_tensor_type(entry, f"record.tensors[{index}]") for index, entry in enumerate(table))
    used: set[int] = set()
    checked = _check(tree, "$", 1, num_tensors, used)
    if len(used) != num_tensors:
        raise RemoteProtocolError(f"{num_tensors - len(used)} tensors do not occur in the record", "record.tensors")
    nbytes, offsets = place(len(head), [each.nbytes for each in types])
    return Head(checked, types, offsets, nbytes)


_read_kept = lru_cache(maxsize=256)(_read)


def _tensor_type(entry: Any, field: str) -> TensorType:
    if not isinstance(entry, list) or len(entry) != 2:
        raise RemoteProtocolError("not [dtype, shape]", field)
    return TensorType.checked(entry[0], entry[1], field)


def _check(value: Any, path: str, depth: int, num_tensors: int, used: set[int]) -> Any:
    """Return a tree in which references are `TensorRef`; adds their numbers to `used`."""
    if isinstance(value, msgpack.ExtType):
        return _check_reference(value, path, num_tensors, used)
    if type(value) is int or type(value) in PLAIN:
        return value
    if depth > MAX_DEPTH:
        raise RemoteProtocolError(f"nests more than {MAX_DEPTH} deep", path)
    if isinstance(value, list):
        return [_check(item, f"{path}[{at}]", depth + 1, num_tensors, used) for at, item in enumerate(value)]
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise RemoteProtocolError("keys are strings", path)
        return {key: _check(item, f"{path}.{key}", depth + 1, num_tensors, used) for key, item in value.items()}
    raise RemoteProtocolError(f"a {type(value).__name__} does not belong here", path)


def _check_reference(found: Any, path: str, num_tensors: int, used: set[int]) -> TensorRef:
    if found.code != TENSOR_CODE or len(found.data) != _INDEX.size:
        raise RemoteProtocolError(f"extension {found.code} of {len(found.data)} bytes", path)
    (index,) = _INDEX.unpack(found.data)
    if index >= num_tensors or index in used:
        raise RemoteProtocolError(f"tensor {index} of {num_tensors} is missing or occurs twice", path)
    used.add(index)
    return TensorRef(index)


_REFERENCES = tuple(msgpack.ExtType(TENSOR_CODE, _INDEX.pack(index)) for index in range(64))
