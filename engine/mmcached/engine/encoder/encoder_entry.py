"""Encoder cache entries, and their consistency checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
