"""Whoever reads KV events: knows what can be found, and makes every digest again from nothing but what it was told.

Written after the description in `mmcached.wire.messages.kv_events`, with the standard library alone.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping

from mmcached.wire.messages.kv_events import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventKey,
    KVEvent,
)

ROOT = hashlib.sha256(b"mmcached: parent of every first block, version 2, sha256").digest()


class Reader:
    """Apply events in order; fails on one that tells what is known already, or takes back what is not.

    Attributes:
        known: (group, digest) of all that can be found.
    """

    def __init__(self) -> None:
        self.known: set[tuple[int | None, BlockHash]] = set()

    def apply(self, events: Iterable[KVEvent]) -> None:
        for event in events:
            match event:
                case AllBlocksCleared():
                    self.known.clear()
                case BlockStored():
                    contents = {(event.group_idx, digest) for digest in event.block_hashes}
                    assert len(contents) == len(event.block_hashes)
                    assert self.known.isdisjoint(contents), "stored, but known already"
                    self.known |= contents
                case BlockRemoved():
                    contents = {(event.group_idx, digest) for digest in event.block_hashes}
                    assert len(contents) == len(event.block_hashes)
                    assert contents <= self.known, "removed, but never stored"
                    self.known -= contents


def digests_of(event: BlockStored, salts: Mapping[str, str] | None = None) -> list[bytes]:
    """Return the digests of a run's blocks, by sha256.

    Args:
        salts: those that the reader knows, by their names.
    """
    size = event.hash_block_size or event.block_size
    extra_keys = event.extra_keys if event.hash_block_size is None else event.hash_extra_keys
    behind = event.lookahead_token_ids[-1] if event.lookahead_token_ids else []
    token_ids = [*event.token_ids, *behind]
    digest = event.parent_block_hash if event.parent_block_hash is not None else ROOT
    digests = []
    for index, start in enumerate(range(0, len(event.token_ids), size)):
        assert isinstance(digest, bytes)
        body = digest + _u32(size) + _packed(token_ids[start : start + size])
        for position, key in enumerate((extra_keys[index] if extra_keys else None) or []):
            body += _encoded(event, key, is_adapter=event.lora_name is not None and position == 0, salts=salts or {})
        if behind:
            body += b"N" + _u32(len(behind)) + _packed(token_ids[start + size : start + size + len(behind)])
        digest = hashlib.sha256(body).digest()
        digests.append(digest)
    ratio = event.block_size // size
    return digests[ratio - 1 :: ratio]


def _encoded(event: BlockStored, key: EventKey, *, is_adapter: bool, salts: Mapping[str, str]) -> bytes:
    if isinstance(key, str):
        if not is_adapter:
            return b"S" + _text(salts[key])
        assert key == event.lora_name
        assert event.lora_path is not None
        return b"L" + _text(key) + _text(event.lora_path)
    if isinstance(key, bytes):
        return b"E" + key[:8] + _u32(len(key) - 8) + key[8:]
    identifier, offset = key
    return b"M" + _text(identifier) + struct.pack("<q", offset)


def _u32(number: int) -> bytes:
    return struct.pack("<I", number)


def _packed(token_ids: list[int]) -> bytes:
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _text(text: str) -> bytes:
    return _u32(len(text.encode())) + text.encode()
