"""Computes the block hashes of KV blocks: equal digests mean equal prefixes.

    digest(block i)  = hash( digest(block i-1) | number of tokens (u32) | token ids (u32 each) | extra keys )
    digest(block -1) = root of the hash function           all numbers little-endian, every digest 32 bytes

Only full blocks have one. Placeholders of different images are the same token, so a block also names each item that it
overlaps, with the item's offset from the block's start: the same image one token later is other content. If tokens
before an item are computed in one piece with it (`num_bound`), their blocks name it, too. Adapter and
tenant's salt are in the first block only; the chain carries them on. The first part has a fixed width, the second gives
the length of the third, and extra keys delimit themselves (`block_keys`): no two different blocks feed the same bytes
to the hash.

Where a drafter looks L tokens ahead, the KV of a block depends on the L tokens behind it as well. Its digest then
covers these, and the items there, and exists only once they are known:

    | block i                 | L tokens |
    |----- tokens ------------| `LookaheadKey`, last of the extra keys
    |----- items, embeddings ------------|

Roots of collision-proof functions are fixed, so that engines on other hosts agree on every digest. The root of another
function is random in each process, so that colliding prompts cannot be computed beforehand. Engines that must agree
nevertheless, and readers of events that recompute digests, are given one seed; it is configured and never taken from
PYTHONHASHSEED, which processes need not share.

A client that finds two prefixes with one digest can read another tenant's cache: a function that is not collision-proof
is only for clients that trust each other.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog
from blake3 import blake3
from xxhash import xxh3_128

from mmcached.cache.hashing.block_keys import EmbedsKey, ExtraKey, LoraKey, MultiModalKey, SaltKey, lookahead_head
from mmcached.cache.hashing.token_bytes import TOKEN_BYTES, pack_token_ids
from mmcached.wire.errors import ConfigError, InvalidRequest
from mmcached.wire.messages.parts import Feature

DIGEST_BYTES = 32

# With fewer, two of some billion blocks share a digest by chance.
_MIN_HASH_BYTES = 16
_COUNT = struct.Struct("<I")

log = structlog.get_logger("mmcached.engine")


class _Digest(Protocol):
    def digest(self) -> bytes: ...


class Sequenced(Protocol):
    """A hashed sequence: a prompt and its generated tokens, such as an engine's request."""

    block_hashes: list[bytes]

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def features(self) -> Sequence[Feature]: ...
    @property
    def tenant(self) -> str: ...
    @property
    def lora(self) -> LoraKey | None: ...
    @property
    def prompt_embeds(self) -> Mapping[int, bytes]: ...


class BlockHasher:
    """One hash function and the chains that it makes. Stateless.

    Args:
        name: Name of the function; goes into its root.
        new: Makes a digest of 16 to 32 bytes over its argument; shorter ones are padded with zeros to 32.
        seed: Text that goes into the root too, if it is not empty.
        is_collision_proof: Whether finding two blocks with one digest is infeasible.

    Attributes:
        root: Parent of every first block.

    Raises:
        ConfigError: The digests of `new` have another width.
    """

    def __init__(
        self, name: str, new: Callable[[bytes], _Digest], *, seed: str = "", is_collision_proof: bool = True
    ) -> None:
        text = f"mmcached: parent of every first block, version 2, {name}" + (f", seed {seed}" if seed else "")
        hashed = new(text.encode("utf-8", "surrogatepass")).digest()
        if not _MIN_HASH_BYTES <= len(hashed) <= DIGEST_BYTES:
            limit = f"a digest must have {_MIN_HASH_BYTES} to {DIGEST_BYTES} bytes"
            raise ConfigError(name, f"{len(hashed)} bytes", limit)
        self.name = name
        self.seed = seed
        self.is_collision_proof = is_collision_proof
        self._new = new
        self._hash_bytes = len(hashed)
        self._filling = bytes(DIGEST_BYTES - len(hashed))
        self.root = hashed + self._filling

    def with_seed(self, seed: str) -> BlockHasher:
        """Return the same function with a root made from this seed."""
        return BlockHasher(self.name, self._new, seed=seed, is_collision_proof=self.is_collision_proof)

    def hash_block(self, parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
        """Return the 32-byte digest of one full block.

        >>> hash_block(ROOT_HASH, [1, 2]) == hash_block(ROOT_HASH, [1, 2], [SaltKey("a tenant")])
        False

        Raises:
            InvalidRequest: As `encode_block`.
        """
        return self._new(encode_block(parent, token_ids, extra_keys)).digest() + self._filling

    def extend_block_hashes(self, request: Sequenced, block_size: int, num_lookahead_tokens: int = 0) -> None:
        """Append to `request.block_hashes` the missing digests of full blocks whose lookahead tokens are known.

        Args:
            num_lookahead_tokens: Tokens behind a block that its digest covers; the same in all calls for a request.

        Raises:
            InvalidRequest: A token id to be hashed is a placeholder; nothing was added.
        """
        hashes = request.block_hashes
        blocks = range(len(hashes), (request.num_tokens - num_lookahead_tokens) // block_size)
        if not blocks:
            return
        first, end = blocks.start * block_size, blocks.stop * block_size
        packed = pack_token_ids(request.token_ids[first : end + num_lookahead_tokens], first)
        # The padding belongs to the parent; it is put in front of all bodies at once, not behind each digest.
        head, stride = self._filling + _COUNT.pack(block_size), block_size * TOKEN_BYTES
        starts = range(0, len(blocks) * stride, stride)
        bodies = [head + packed[start : start + stride] for start in starts]
        keys = extra_keys_by_block(request, block_size, blocks, num_lookahead_tokens)
        for index, extra_keys in keys.items():
            bodies[index - blocks.start] += _encoded(extra_keys)
        if num_lookahead_tokens:
            behind, width = lookahead_head(num_lookahead_tokens), stride + num_lookahead_tokens * TOKEN_BYTES
            paired = zip(bodies, starts, strict=True)
            bodies = [body + behind + packed[start + stride : start + width] for body, start in paired]

        new, digest, digests = self._new, (hashes[-1] if hashes else self.root)[: self._hash_bytes], []
        for body in bodies:
            digest = new(digest + body).digest()
            digests.append(digest)
        hashes += [digest + self._filling for digest in digests] if self._filling else digests


def encode_block(parent: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
    """Return the bytes that the hash of a block is taken over; different blocks have different encodings.

    Raises:
        InvalidRequest: The parent is not a digest, or a token id is a placeholder.
    """
    if len(parent) != DIGEST_BYTES:
        raise InvalidRequest("parent", f"{len(parent)} bytes", f"a digest has {DIGEST_BYTES} bytes")
    return parent + _COUNT.pack(len(token_ids)) + pack_token_ids(token_ids) + _encoded(extra_keys)


def extra_keys_by_block(
    request: Sequenced, block_size: int, blocks: range, num_lookahead_tokens: int = 0
) -> Mapping[int, list[ExtraKey]]:
    """Return the extra keys of these blocks of a request, by block index. Changes nothing.

    Adapter, items in prompt order, salt, embeddings by position; items and embeddings also where only the lookahead
    tokens behind the block are. A block without any is left out. The lookahead tokens themselves are not included.
    """
    keys: defaultdict[int, list[ExtraKey]] = defaultdict(list)
    if request.lora is not None and 0 in blocks:
        keys[0].append(request.lora)
    for feature in request.features:
        if feature.length:
            first = (feature.offset - max(num_lookahead_tokens, feature.num_bound)) // block_size
            last = (feature.offset + feature.length - 1) // block_size
            for index in range(max(blocks.start, first), min(blocks.stop, last + 1)):
                keys[index].append(MultiModalKey(feature.mm_hash, feature.offset - index * block_size))
    if request.tenant and 0 in blocks:
        keys[0].append(SaltKey(request.tenant))
    if request.prompt_embeds:
        for index in blocks:
            for offset in range(block_size + num_lookahead_tokens):
                if (row_digest := request.prompt_embeds.get(index * block_size + offset)) is not None:
                    keys[index].append(EmbedsKey(offset, row_digest))
    return keys


def block_hasher(algorithm: str, seed: str = "") -> BlockHasher:
    """Return the hasher of a configured name.

    "builtin", the default of vLLM's first versions, is replaced by "sha256" with a warning: a tenant can collide
    Python's 64-bit hash deliberately. "xxh3" is warned about too.

    Args:
        seed: Seed of the root; "": a fixed root, and for "xxh3" one that is random in each process.

    Raises:
        ConfigError: The algorithm is unknown.
    """
    if algorithm == "builtin":
        log.warning("block hashes by sha256: Python's hash is not collision-proof", asked_for=algorithm)
        algorithm = SHA256.name
    if algorithm not in _HASHERS:
        known = ", ".join([*_HASHERS, "builtin"])
        raise ConfigError("prefix_caching_hash_algo", algorithm, f"must be one of {known}")
    hasher = _HASHERS[algorithm]
    if not hasher.is_collision_proof:
        log.warning(
            "block hashes are not collision-proof: a client can craft prompts that read another tenant's cached blocks;"
            " choose sha256 unless all clients trust each other",
            asked_for=algorithm,
        )
    return hasher.with_seed(seed) if seed else hasher


def _encoded(extra_keys: Sequence[ExtraKey]) -> bytes:
    return b"".join([extra_key.encode() for extra_key in extra_keys])


SHA256 = BlockHasher("sha256", hashlib.sha256)
_HASHERS = {
    hasher.name: hasher
    for hasher in (
        SHA256,
        BlockHasher("blake3", blake3),
        BlockHasher("xxh3", xxh3_128, seed=secrets.token_hex(16), is_collision_proof=False),
    )
}

# The default hasher's root and functions.
ROOT_HASH = SHA256.root
hash_block = SHA256.hash_block
extend_block_hashes = SHA256.extend_block_hashes
