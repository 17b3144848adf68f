"""An engine publishes these events of its KV prefix cache: contents that have come, contents that have gone.

    PUB     [topic][number][batch]                                  number: 8 bytes, big-endian, one more each time
    ROUTER  [empty][number] -> [empty][topic][number][batch] …      what is kept, from that number on
                               [empty][empty][-1][empty]            … and that was all

Form and names are those of vLLM 0.33's KV events, so that its routers read them: a batch is an array of three, an event
a map with the field `type`; whoever reads must pass over fields that it does not know. `medium` is always "GPU", for
where the workers compute. What vLLM does not have comes last and makes every digest computable from what was told:

    digest(block i)  = H( digest(block i-1) | number of tokens (u32) | token ids (u32 each) | extra keys )

    block_hashes[j]  is the digest of block `first_block + j`, and covers everything up to its end
    hash_block_size  tokens per digest of that chain; a coarser block has the last digest inside it
    parent_…         what the run continues: the digest of the hashed block before it; None: it begins the sequence,
                     and continues the root of H, which is made from `prefix_caching_hash_seed` if there is one
    extra keys       by hashed block: the adapter's name and the name of the salt are text, in the first block of the
                     sequence; (identifier, offset) is an item; bytes are an offset (i64) and the digest of a row

With hash lookahead, a digest also covers the tokens behind its block: those of the run, and in the end those that
`lookahead_token_ids` has for its last block.

Who may read this: prompts are in it, as token ids. A salt is not, because whoever knows it can be answered from its
owner's blocks; in its place stands its `salt_name`, which tells salts apart. So the first digest under a salt is
computed by who knows the salt, and believed by others; all that follow need only their parent.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

BlockHash = bytes | int
"""A digest; or, where the configuration says so, its last 8 bytes as a big-endian number."""
EventKey = str | bytes | tuple[str, int]
ExtraKeys = list[Any] | None
"""What besides its tokens decides the content of one block: `EventKey`s, of which a pair arrives as a list."""

MEDIUM = "GPU"
NUMBER_BYTES = 8
END_OF_REPLAY = (-1).to_bytes(NUMBER_BYTES, "big", signed=True)
SALT_PREFIX = "salt:"


class KVCacheEvent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Base of all events: a map in which `type` is the class name."""


class BlockStored(KVCacheEvent, frozen=True):
    """A run of blocks of one sequence can be found from now on; each was unknown before.

    Attributes:
        token_ids: of the whole run, `block_size` for each block.
        lora_id: always None; an adapter has a name.
        extra_keys: per block, offsets from its start; None if no block of the run has any.
        group_idx: the group of layers whose blocks these are; equal digests in two groups are two contents.
        kv_cache_spec_kind: "full_attention" or "sliding_window".
        kv_cache_spec_sliding_window: tokens that it looks back on.
        locality, ownership, session_id: never set; vLLM may.
        lookahead_token_ids: per block, the tokens behind it that its digest covers too.
        first_block: logical index of the run's first block in its sequence.
        hash_block_size: tokens per digest, if not `block_size`.
        hash_extra_keys: as `extra_keys`, per hashed block, if these are smaller than the group's blocks.
        lora_path: source of the adapter of `lora_name`; it is part of the adapter's key.
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
    """These contents of one group cannot be found any more: the last block that held each of them was given away."""

    block_hashes: list[BlockHash]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(KVCacheEvent, frozen=True):
    """Nothing that was stored before can be found any more."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, frozen=True, array_like=True):
    """What has changed since the batch before. Events are in order; a run comes after the run that it continues.

    Attributes:
        ts: when it was published, seconds since the epoch.
        data_parallel_rank: index of the engine.
    """

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


def salt_name(salt: str) -> str:
    """Return what stands for a salt in events: equal for equal salts, and of no use to become its owner.

    A short salt can be guessed from it. It does not look like the key of an item.

    >>> salt_name("a tenant")[:12]
    'salt:7acbdb1'
    """
    text = b"mmcached: name of a salt, " + salt.encode("utf-8", "surrogatepass")
    return SALT_PREFIX + hashlib.sha256(text).hexdigest()
