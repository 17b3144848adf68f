"""Defines and validates the framing of records on a server that several hosts share.

    whole       head │ the record
    manifest    head │ sum of each part, 16 bytes each      of a record above `PART_BYTES`; written last
    part        head │ the next bytes of the record         named after the digest of the manifest's sums

    head        magic │ version │ kind │ number │ epoch │ name │ nbytes │ parts │ expiry │ sum │ seal        112 bytes

    number      of a part; else the seconds that computing the record took, in steps of 10 µs, 0: unknown
    name        the 64 hex digits of `store_key`, as 32 bytes
    nbytes      size of the record
    parts       digest of a manifest's sums, so parts of two saves are never mixed; 0 in a whole record
    expiry      milliseconds since 1970 from which the record is expired; 0: never. In parts always 0
    sum         xxh3-128 of the bytes after the head
    seal        xxh3-128 of the head's other fields

A value that is truncated, of another version, epoch or record, or changed in any bit raises `Unusable`. The sums detect
accidents; a writer with access to the server can forge any value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from xxhash import xxh3_64_intdigest, xxh3_128, xxh3_128_digest

from mmcached.second_level.backend import Value
from mmcached.wire.errors import MmcachedError

MAGIC = b"mmcL2\r\n\0"
VERSION = 3
"""Version of the framing, the encoding of records, and the meaning of epochs; raised when one of them changes. It is
part of each name on the server, so hosts of two versions neither find nor overwrite each other's records.
"""
_FIELDS = struct.Struct("<8sHHIQ32sQQQ16s")
SUM_BYTES = 16
HEAD_BYTES = _FIELDS.size + SUM_BYTES
MAX_VALUE_BYTES = 32 << 20
"""A power of two, head included: allocators of servers round larger values up to the next size."""
PART_BYTES = MAX_VALUE_BYTES - HEAD_BYTES
MAX_FLAWED = 4096
"""Number of names remembered as damaged in the second level: they are saved whatever their heads say."""
_WHOLE, _MANIFEST, _PART = range(3)
_KINDS = (_WHOLE, _MANIFEST, _PART)
_COST_UNIT_S = 1e-5
_MAX_COST = (1 << 32) - 1

Flaw = Literal["foreign", "version", "epoch", "other", "cut", "corrupt", "large"]


class Unusable(MmcachedError):
    """A value is not the requested record, or is damaged."""

    code = "unusable_record"

    def __init__(self, flaw: Flaw) -> None:
        super().__init__(f"not the record that was asked for: {flaw}", flaw=flaw)
        self.flaw: Flaw = flaw


@dataclass(frozen=True, slots=True)
class Manifest:
    """A record in parts: the sum of each part, and the digest of all sums."""

    nbytes: int
    parts: int
    sums: tuple[bytes, ...]

    def part_names(self, name: str) -> list[str]:
        return [_part_name(name, self.parts, number) for number in range(len(self.sums))]


Framed = tuple[str, list[Value]]
"""A name, and the pieces of the value to store under it."""


@dataclass(frozen=True, slots=True)
class Found:
    """The bytes of an encoded record, as consecutive pieces; `ttl_s` 0.0: it never expires, `cost_s` 0.0: unknown."""

    pieces: list[memoryview]
    ttl_s: float = 0.0
    cost_s: float = 0.0

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Missed:
    """The record is absent, unusable, or was not read while others were."""

    reason: Literal["absent", "late", "failed"] | Flaw


def pack(
    name: str,
    epoch: int,
    pieces: Sequence[Value],
    *,
    expiry_ms: int = 0,
    cost_s: float = 0.0,
    part_bytes: int = PART_BYTES,
) -> list[Framed]:
    """Return the values to store, in this order; they refer to the record's bytes without a copy.

    Args:
        name: 64 hex digits.
        pieces: The encoded record.
        expiry_ms: As in the head.
        cost_s: Seconds that computing the record took; 0.0: unknown.
    """
    cost = min(round(cost_s / _COST_UNIT_S), _MAX_COST)
    views = [memoryview(piece).cast("B") for piece in pieces]
    nbytes = sum(map(len, views))
    if nbytes <= part_bytes:
        whole = _head(
            _WHOLE, cost, name, epoch=epoch, nbytes=nbytes, parts=0, body_sum=_sum(views), expiry_ms=expiry_ms
        )
        return [(name, [whole, *views])]
    cut = list(_cut(views, part_bytes))
    sums = [_sum(part) for part in cut]
    listed = b"".join(sums)
    parts = xxh3_64_intdigest(listed)
    head = partial(_head, name=name, epoch=epoch, nbytes=nbytes, parts=parts)
    framed: list[Framed] = [
        (_part_name(name, parts, number), [head(_PART, number, body_sum=sums[number]), *part])
        for number, part in enumerate(cut)
    ]
    manifest = head(_MANIFEST, cost, body_sum=xxh3_128_digest(listed), expiry_ms=expiry_ms)
    return [*framed, (name, [manifest, listed])]


def framed_bytes(nbytes: int) -> int:
    """Return the bytes of all values of a record of `nbytes`."""
    num_parts = -(-nbytes // PART_BYTES) if nbytes > PART_BYTES else 0
    return HEAD_BYTES + nbytes + num_parts * (HEAD_BYTES + SUM_BYTES)


def expiry_ms_of(value: Value) -> int:
    """Return the expiry (ms since 1970, 0 for never) of a value that `unpack` has accepted."""
    expiry_ms: int = _FIELDS.unpack_from(value)[8]
    return expiry_ms


def cost_s_of(value: Value) -> float:
    """Return the cost in seconds of a value with a valid head that is no part; 0.0: unknown."""
    cost: int = _FIELDS.unpack_from(value)[3]
    return cost * _COST_UNIT_S


def unpack(
    name: str, epoch: int, value: Value, *, max_bytes: int, part_bytes: int = PART_BYTES
) -> memoryview | Manifest:
    """Return the record in place, or its manifest.

    Args:
        max_bytes: The largest size of a record.

    Raises:
        Unusable: The value is neither.
    """
    head = _read_head(name, epoch, value)
    body = memoryview(value)[HEAD_BYTES:]
    if head.nbytes > max_bytes:
        raise Unusable("large")
    if head.kind == _WHOLE:
        if len(body) != head.nbytes:
            raise Unusable("cut")
    elif head.kind != _MANIFEST:
        raise Unusable("other")
    elif len(body) != SUM_BYTES * -(-head.nbytes // part_bytes):
        raise Unusable("cut")
    if _sum([body]) != head.sum:
        raise Unusable("corrupt")
    if head.kind == _WHOLE:
        return body
    sums = tuple(bytes(body[at : at + SUM_BYTES]) for at in range(0, len(body), SUM_BYTES))
    return Manifest(head.nbytes, head.parts, sums)


def unpack_part(
    name: str, epoch: int, manifest: Manifest, number: int, value: Value, *, part_bytes: int = PART_BYTES
) -> memoryview:
    """Return the bytes of a part, in place; `Unusable` if the value is not that part."""
    head = _read_head(name, epoch, value)
    body = memoryview(value)[HEAD_BYTES:]
    found = (head.kind, head.number, head.nbytes, head.parts, head.sum)
    if found != (_PART, number, manifest.nbytes, manifest.parts, manifest.sums[number]):
        raise Unusable("other")
    if len(body) != min(part_bytes, manifest.nbytes - number * part_bytes):
        raise Unusable("cut")
    if _sum([body]) != head.sum:
        raise Unusable("corrupt")
    return body


def is_head(name: str, epoch: int, head: Value) -> bool:
    """Return whether a value with this head belongs to the record and epoch; its body may still be damaged."""
    try:
        return _read_head(name, epoch, head).kind != _PART
    except Unusable:
        return False


def part_names_in(name: str, epoch: int, value: Value | Exception | None) -> list[str]:
    """Return the names of the parts of a record, if the value is its manifest; it may be one of a whole record, cut."""
    try:
        found = unpack(name, epoch, value, max_bytes=1 << 62) if isinstance(value, Value) else None
    except Unusable:
        return []
    return found.part_names(name) if isinstance(found, Manifest) else []


@dataclass(frozen=True, slots=True)
class _Head:
    kind: int
    number: int
    nbytes: int
    parts: int
    sum: bytes


def _head(
    kind: int, number: int, name: str, *, epoch: int, nbytes: int, parts: int, body_sum: bytes, expiry_ms: int = 0
) -> bytes:
    name_bytes = bytes.fromhex(name)
    fields = _FIELDS.pack(MAGIC, VERSION, kind, number, epoch, name_bytes, nbytes, parts, expiry_ms, body_sum)
    return fields + xxh3_128_digest(fields)


def _read_head(name: str, epoch: int, value: Value) -> _Head:
    fields = bytes(memoryview(value)[:HEAD_BYTES])
    if len(fields) < HEAD_BYTES:
        raise Unusable("cut" if fields.startswith(MAGIC[: len(fields)]) else "foreign")
    magic, version, kind, number, its_epoch, its_name, nbytes, parts, _, body_sum = _FIELDS.unpack_from(fields)
    if magic != MAGIC:
        raise Unusable("foreign")
    if version != VERSION:
        raise Unusable("version")
    if xxh3_128_digest(fields[: _FIELDS.size]) != fields[_FIELDS.size :]:
        raise Unusable("corrupt")
    if its_name != bytes.fromhex(name) or kind not in _KINDS:
        raise Unusable("other")
    if its_epoch != epoch or not epoch:
        raise Unusable("epoch")
    return _Head(kind, number, nbytes, parts, body_sum)


def _part_name(name: str, parts: int, number: int) -> str:
    return f"{name}/{parts:016x}/{number}"


def _cut(views: Sequence[memoryview], part_bytes: int) -> Iterator[list[memoryview]]:
    part: list[memoryview] = []
    room = part_bytes
    for view in views:
        rest = view
        while len(rest):
            taken, rest = rest[:room], rest[room:]
            part.append(taken)
            room -= len(taken)
            if not room:
                yield part
                part, room = [], part_bytes
    if part:
        yield part


def _sum(views: Sequence[memoryview]) -> bytes:
    state = xxh3_128()
    for view in views:
        state.update(view)
    return state.digest()
