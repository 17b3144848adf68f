"""Encoder cache entries, and their consistency checks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mmcached.wire.errors import InvariantError


@dataclass(slots=True, eq=False)
class EncoderEntry:
    """Encoder output of one content in one epoch, under `key` in the workers.

    If `is_old`, it is of a former epoch: it cannot be found, and ends with its last reference.
    """

    content: str
    key: str
    num_embeds: int
    num_references: int
    is_old: bool = False


Held = Mapping[int, Mapping[int, EncoderEntry]]
"""Request id -> item index -> the entry that the item refers to."""


def all_entries(table: Mapping[str, EncoderEntry], held: Held) -> list[EncoderEntry]:
    old = {entry.key: entry for items in held.values() for entry in items.values() if entry.is_old}
    return [*table.values(), *old.values()]


def check_entries(
    table: Mapping[str, EncoderEntry],
    evictable: Mapping[str, EncoderEntry],
    held: Held,
    reserved: Iterable[EncoderEntry],
) -> None:
    """Raise `InvariantError` if a manager's tables contradict each other."""
    entries = all_entries(table, held)
    by_key = {entry.key: entry for entry in entries}
    if len(by_key) != len(entries):
        raise InvariantError("two entries have the same key")
    references = dict.fromkeys(by_key, 0)
    for request_id, items in held.items():
        if not items:
            raise InvariantError(f"request {request_id} is listed without references")
        for input_id, entry in items.items():
            if by_key.get(entry.key) is not entry:
                raise InvariantError(f"item {input_id} of request {request_id} refers to {entry}, which is gone")
            references[entry.key] += 1
    for entry in entries:
        _check_entry(entry, table, evictable, references[entry.key])
    if not evictable.keys() <= table.keys():
        raise InvariantError(f"evictable, but not in the table: {evictable.keys() - table.keys()}")
    for entry in reserved:
        if by_key.get(entry.key) is not entry or not entry.num_references:
            raise InvariantError(f"reserved without reference: {entry}")


def _check_entry(
    entry: EncoderEntry, table: Mapping[str, EncoderEntry], evictable: Collection[str], num_references: int
) -> None:
    if entry.num_references != num_references:
        raise InvariantError(f"{entry} has {num_references} reference(s)")
    if entry.is_old == (table.get(entry.content) is entry):
        raise InvariantError(f"{entry} is old and in the table, or neither")
    if (not num_references) != (not entry.is_old and entry.content in evictable):
        raise InvariantError(f"{entry}: evictable entries are those of this epoch without reference")
