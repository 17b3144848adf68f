"""KV events that an engine publishes: the content added to its prefix cache, and removed from it.

    PUB     [topic][number][batch]                                  number: 8 bytes, big-endian, one more each time
    ROUTER  [empty][number] -> [empty][topic][number][batch] …      the kept batches from that number on
                               [empty][empty][-1][empty]            … and the end of the replay

Form and names are those of vLLM 0.33's KV events, so that its routers read them: a batch is an array of three, an event
a map with the field `type`; readers must ignore unknown fields. `medium` is always "GPU", wherever the workers compute.
Fields that vLLM lacks come last and make every digest computable from the events:

    digest(block i)  = H( digest(block i-1) | number of tokens (u32) | token ids (u32 each) | extra keys )

    block_hashes[j]  is the digest of block `first_block + j`, and covers everything up to its end
    hash_block_size  tokens per digest of that chain; a coarser block has the last digest inside it
    parent_…         the digest of the hashed block before the run; None: the run begins the sequence, and continues
                     the root of H, which is made from `prefix_caching_hash_seed` if there is one
    extra keys       by hashed block: the adapter's name and the name of the salt are text, in the first block of the
                     sequence; (identifier, offset) is an item; bytes are an offset (i64) and the digest of a row

With hash lookahead, a digest also covers the tokens behind its block: those of the run, and for its last block those in
`lookahead_token_ids`.

Events contain prompts as token ids. A salt is left out, because a client that knows it can be answered from its owner's
blocks; its `salt_name` tells salts apart. So the first digest under a salt can be computed only with the salt; all that
follow need only their parent.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

BlockHash = bytes | int
"""A digest; or, where so configured, its last 8 bytes as a big-endian number."""
EventKey = str | bytes | tuple[str, int]
ExtraKeys = list[Any] | None
"""The inputs of one block's content besides its tokens: `EventKey`s, of which a pair arrives as a list."""

MEDIUM = "GPU"
NUMBER_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
SALT_PREFIX = "salt:"


class KVCacheEvent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all events: a map in which `type` is the class name."""


class BlockStored(KVCacheEvent, frozen=True):
    """A run of blocks of one sequence was added; each was unknown before.

    Attributes:
        token_ids: Tokens of the whole run, `block_size` for each block.
        lora_id: Always None; an adapter has a name.
        extra_keys: Per block, with offsets from its start; None if no block of the run has any.
        group_idx: The group of layers of these blocks; equal digests in two groups are two contents.
        kv_cache_spec_kind: "full_attention" or "sliding_window".
        kv_cache_spec_sliding_window: Size of the attention window in tokens.
        locality, ownership, session_id: Never set; vLLM may.
        lookahead_token_ids: Per block, the tokens behind it that its digest covers too.
        first_block: Logical index of the run's first block in its sequence.
        hash_block_size: Tokens per digest, if not `block_size`.
        hash_extra_keys: As `extra_keys`, per hashed block, if these are smaller than the group's blocks.
        lora_path: Source of the adapter of `lora_name`; it is part of the adapter's key.
        hash_algorithm: H.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[ExtraKeys] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None
    first_block: int | None = None
    hash_block_size: int | None = None
    hash_extra_keys: list[ExtraKeys] | None = None
    lora_path: str | None = None
    hash_algorithm: str | None = None


class BlockRemoved(KVCacheEvent, frozen=True):
    """These contents of one group were removed: the last block that held each of them was reused."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent, frozen=True):
    """All stored blocks were removed."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True, array_like=True):
    """Changes since the last batch. Events are in order; a run comes after the run that it continues.

    Attributes:
        ts: Time of publication, in seconds since 1970.
        data_parallel_rank: Index of the engine.
    """

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


def salt_name(salt: str) -> str:
    """Return the name of a salt in events: equal for equal salts, and useless to act as its owner.

    A short salt can be guessed from it. It cannot be confused with the key of an item.

    >>> salt_name("a tenant")[:12]
    'salt:7acbdb1'
    """
    text = b"mmcached: name of a salt, " + salt.encode("utf-8", "surrogatepass")
    return SALT_PREFIX + hashlib.sha256(text).hexdigest()
