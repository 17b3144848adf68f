"""Content keys of KV blocks: equal digest, equal whole prefix.

    digest(block i) = sha256( digest(block i-1) | tokens of block i | extra keys of block i )
    digest(block -1) = ROOT_HASH

Only full blocks have one. Placeholders of different images are the same token, so a block also names each item it
overlaps, with the item's offset from the block's start: the same image one token later is other content. The tenant's
salt is in the first block only; the chain carries it on. Every part is framed by a tag and its length, so that no two
different blocks feed the same bytes to the hash. Knows nothing of block ids or pools. The root is fixed: two engines
agree on every digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from mmcached.engine.request import Request

ExtraKey = tuple[str | int, ...]

ROOT_HASH = hashlib.sha256(b"mmcached: parent of every first block, version 1").digest()


def hash_block(parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
    """Return the 32-byte digest of a full block.

    >>> hash_block(ROOT_HASH, [1, 2]) == hash_block(ROOT_HASH, [1, 2], [("salt", "a tenant")])
    False
    """
    parts = [_framed(b"p", parent), _framed(b"t", struct.pack(f"<{len(token_ids)}I", *token_ids))]
    parts += [_framed(b"k", b"".join(map(_framed_value, extra_key))) for extra_key in extra_keys]
    return hashlib.sha256(b"".join(parts)).digest()


def extra_keys_of(request: Request, start: int, end: int) -> list[ExtraKey]:
    """Return what besides tokens decides the content of positions `[start, end)`: items, then the tenant's salt."""
    keys: list[ExtraKey] = [
        ("mm", feature.mm_hash, feature.offset - start) for _, feature in request.features_in(start, end)
    ]
    if start == 0 and request.tenant:
        keys.append(("salt", request.tenant))
    return keys


def extend_block_hashes(request: Request, block_size: int) -> None:
    """Add to `request.block_hashes` the digests of the blocks that have become full since the last call."""
    hashes = request.block_hashes
    for index in range(len(hashes), request.num_tokens // block_size):
        start, end = index * block_size, (index + 1) * block_size
        parent = hashes[-1] if hashes else ROOT_HASH
        hashes.append(hash_block(parent, request.token_ids[start:end], extra_keys_of(request, start, end)))


def _framed(tag: bytes, data: bytes) -> bytes:
    return tag + struct.pack("<I", len(data)) + data


def _framed_value(value: str | int) -> bytes:
    if isinstance(value, str):
        return _framed(b"s", value.encode())
    return _framed(b"i", struct.pack("<q", value))
