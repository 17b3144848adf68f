"""Content keys of KV blocks: equal digest, equal whole prefix.

    digest(block i)  = hash( digest(block i-1) | number of tokens (u32) | token ids (u32 each) | extra keys )
    digest(block -1) = root of the hash function           all numbers little-endian, every digest 32 bytes

Only full blocks have one. Placeholders of different images are the same token, so a block also names each item it
overlaps, with the item's offset from the block's start: the same image one token later is other content. Adapter and
tenant's salt are in the first block only; the chain carries them on. The first part has a fixed width, the second says
how long the third is, and extra keys delimit themselves (`block_keys`): no two different blocks feed the same bytes to
the hash. Roots are fixed, and nothing depends on process or machine: two engines agree on every digest.

Knows nothing of block ids or pools. Every hash function on offer is collision-proof: who finds two prefixes with one
digest reads another tenant's cache.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, SupportsIndex

import structlog
from blake3 import blake3

from mmcached.engine.kv.block_keys import EmbedsKey, ExtraKey, MultiModalKey, SaltKey
from mmcached.engine.request import Request
from mmcached.wire.errors import ConfigError, InvalidRequest

DIGEST_BYTES = 32
MAX_TOKEN_ID = (1 << 32) - 1

_TOKEN_BYTES = 4
_COUNT = struct.Struct("<I")

log = structlog.get_logger("mmcached.engine")


class _Digest(Protocol):
    def digest(self) -> bytes: ...


class BlockHasher:
    """One hash function and the chains that it makes. Stateless.

    Args:
        name: of the function; goes into its root.
        new: makes a digest of 32 bytes over all of its argument.

    Attributes:
        root: parent of every first block.

    Raises:
        ConfigError: the digests of `new` have another width.
    """

    def __init__(self, name: str, new: Callable[[bytes], _Digest]) -> None:
        self.name = name
        self._new = new
        self.root = new(f"mmcached: parent of every first block, version 2, {name}".encode()).digest()
        if len(self.root) != DIGEST_BYTES:
            raise ConfigError(name, f"{len(self.root)} bytes", f"a digest must have {DIGEST_BYTES} bytes")

    def hash_block(self, parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
        """Return the 32-byte digest of one full block.

        >>> hash_block(ROOT_HASH, [1, 2]) == hash_block(ROOT_HASH, [1, 2], [SaltKey("a tenant")])
        False

        Raises:
            InvalidRequest: as `encode_block`.
        """
        return self._new(encode_block(parent, token_ids, extra_keys)).digest()

    def extend_block_hashes(self, request: Request, block_size: int) -> None:
        """Add to `request.block_hashes` the digests of the blocks that have become full since the last call.

        Raises:
            InvalidRequest: a token id in one of these blocks is a placeholder; nothing has been added.
        """
        hashes = request.block_hashes
        blocks = range(len(hashes), request.num_tokens // block_size)
        if not blocks:
            return
        first = blocks.start * block_size
        packed = _packed(request.token_ids[first : blocks.stop * block_size], first)
        count, stride = _COUNT.pack(block_size), block_size * _TOKEN_BYTES
        bodies = [count + packed[start : start + stride] for start in range(0, len(packed), stride)]
        for index, extra_keys in extra_keys_by_block(request, block_size, blocks).items():
            bodies[index - blocks.start] += _encoded(extra_keys)

        new, digest, digests = self._new, hashes[-1] if hashes else self.root, []
        for body in bodies:
            digest = new(digest + body).digest()
            digests.append(digest)
        hashes += digests


def encode_block(parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
    """Return what the hash of a block is taken over; another block, another encoding.

    Raises:
        InvalidRequest: the parent is no digest, or a token id is a placeholder.
    """
    if len(parent) != DIGEST_BYTES:
        raise InvalidRequest("parent", f"{len(parent)} bytes", f"a digest has {DIGEST_BYTES} bytes")
    return parent + _COUNT.pack(len(token_ids)) + _packed(token_ids, 0) + _encoded(extra_keys)


def extra_keys_by_block(request: Request, block_size: int, blocks: range) -> Mapping[int, list[ExtraKey]]:
    """Return what besides tokens decides the content of these blocks of a request, by block index. Changes nothing.

    Adapter, items in prompt order, salt, embeddings by position; a block without any is left out.
    """
    keys: defaultdict[int, list[ExtraKey]] = defaultdict(list)
    if request.lora is not None and 0 in blocks:
        keys[0].append(request.lora)
    for feature in request.features:
        if feature.length:
            last = (feature.offset + feature.length - 1) // block_size
            for index in range(max(blocks.start, feature.offset // block_size), min(blocks.stop, last + 1)):
                keys[index].append(MultiModalKey(feature.mm_hash, feature.offset - index * block_size))
    if request.tenant and 0 in blocks:
        keys[0].append(SaltKey(request.tenant))
    if request.prompt_embeds:
        for position in range(blocks.start * block_size, blocks.stop * block_size):
            if (row_digest := request.prompt_embeds.get(position)) is not None:
                index, offset = divmod(position, block_size)
                keys[index].append(EmbedsKey(offset, row_digest))
    return keys


def block_hasher(algorithm: str) -> BlockHasher:
    """Return the hasher that a configuration names.

    "builtin", the default of vLLM's first versions, is taken for "sha256" and warned about: Python's own hash has 64
    bits, which a tenant can collide on purpose, and differs from process to process.

    Raises:
        ConfigError: no such algorithm.
    """
    if algorithm == "builtin":
        log.warning("block hashes by sha256: Python's hash is not collision-proof", asked_for=algorithm)
        return SHA256
    if algorithm not in _HASHERS:
        known = ", ".join([*_HASHERS, "builtin"])
        raise ConfigError("prefix_caching_hash_algo", algorithm, f"must be one of {known}")
    return _HASHERS[algorithm]


def _packed(token_ids: Sequence[int], first_position: int) -> bytes:
    """Return token ids as u32, little-endian."""
    try:
        # From a list, because an array takes bytes for its memory, not for numbers.
        packed = array("I", token_ids if isinstance(token_ids, list) else list(token_ids))
    except (OverflowError, TypeError):
        raise _refusal(token_ids, first_position) from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _refusal(token_ids: Sequence[object], first_position: int) -> InvalidRequest:
    """Return the error that names the first of them that is no token id."""
    numbered = enumerate(token_ids, first_position)
    position, value = next((position, value) for position, value in numbered if not _is_token_id(value))
    limit = f"a placeholder has no content: token ids in a full block are numbers from 0 to {MAX_TOKEN_ID}"
    return InvalidRequest(f"token_ids[{position}]", value if isinstance(value, int) else repr(value), limit)


def _is_token_id(value: object) -> bool:
    return isinstance(value, SupportsIndex) and 0 <= value.__index__() <= MAX_TOKEN_ID


def _encoded(extra_keys: Sequence[ExtraKey]) -> bytes:
    return b"".join([extra_key.encode() for extra_key in extra_keys])


SHA256 = BlockHasher("sha256", hashlib.sha256)
_HASHERS = {hasher.name: hasher for hasher in (SHA256, BlockHasher("blake3", blake3))}

# What the default hasher makes, by itself.
ROOT_HASH = SHA256.root
hash_block = SHA256.hash_block
extend_block_hashes = SHA256.extend_block_hashes
