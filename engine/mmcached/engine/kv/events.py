"""Logs publications and evictions of blocks, and turns them into KV events once per step.

    publication  ── stored(request, group, index, keys) ──┐
    eviction     ── removed(keys) ────────────────────────┼──> log ──> events: cleared, removed per group, stored …
    reset        ── cleared() ────────────────────────────┘

A log entry covers a run of blocks of any length; tokens and extra keys are read from the request when the events are
taken. Content that was stored and removed between two calls of `take_events`, or removed and stored, makes no event. A
run that has lost blocks in its middle makes several events, each with its parent.

Invariant: a subscriber that applies all events in order knows exactly which contents can be found (not how many
copies). The log grows until `take_events` is called.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mmcached.cache.hashing.block_hash import DIGEST_BYTES, extra_keys_by_block
from mmcached.cache.hashing.block_keys import EmbedsKey, ExtraKey, LookaheadKey, LoraKey, MultiModalKey, SaltKey
from mmcached.engine.kv.config import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mmcached.engine.kv.request_hashes import RequestHashes
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.kv_events import (
    MEDIUM,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventKey,
    ExtraKeys,
    KVEvent,
    salt_name,
)

_I64 = struct.Struct("<q")


class _Run(NamedTuple):
    """Consecutive blocks of a request's table that have become findable."""

    request: Request
    group: int
    first_index: int
    keys: Sequence[bytes]
    parent: bytes | None


class PublishedLog:
    """The `ChangeLog` of a pool, which logs publications too."""

    def __init__(self, config: KVCacheConfig, hashes: RequestHashes) -> None:
        self._specs = [group.kv_cache_spec for group in config.kv_cache_groups]
        self._block_sizes = config.block_sizes
        self._hashes = hashes
        self._num_lookahead = hashes.num_lookahead_tokens
        self._is_cleared = False
        self._removed: list[bytes] = []
        self._runs: list[_Run] = []

    def stored(self, request: Request, group: int, first_index: int, keys: Sequence[bytes]) -> None:
        """Log a run of newly findable blocks.

        Args:
            first_index: position of the first block in the request's table of this group.
            keys: content keys; kept, so the caller must not change the list.
        """
        parent = self._digest_before(request, group, first_index) if first_index else None
        self._runs.append(_Run(request, group, first_index, keys, parent))

    def removed(self, keys: list[bytes]) -> None:
        self._removed += keys

    def cleared(self) -> None:
        self._runs = []
        self._removed = []
        self._is_cleared = True

    def take_events(self) -> list[KVEvent]:
        runs, removed, is_cleared = self._runs, self._removed, self._is_cleared
        if not (runs or removed or is_cleared):
            return []
        self._runs, self._removed, self._is_cleared = [], [], False
        if runs and removed:
            runs, removed = _net_changes(runs, removed)
        events: list[KVEvent] = [AllBlocksCleared()] if is_cleared else []
        events += self._removals(removed)
        events += map(self._storage, runs)
        return events

    def _digest_before(self, request: Request, group: int, index: int) -> bytes:
        """Return the parent hash of a block; the parent block need not be published or allocated."""
        position = index * self._block_sizes[group] // self._hashes.block_size - 1
        if position >= len(request.block_hashes):  # the request has ended, and its hashes were forgotten
            self._hashes.extend(request)
        return request.block_hashes[position]

    def _removals(self, keys: list[bytes]) -> Iterator[BlockRemoved]:
        if len(self._specs) == 1:
            by_tag = {b"": keys} if keys else {}
        else:
            by_tag = defaultdict(list)
            for key in keys:
                by_tag[key[DIGEST_BYTES:]].append(key[:DIGEST_BYTES])
        for tag, digests in by_tag.items():
            yield BlockRemoved([*digests], MEDIUM, int.from_bytes(tag, "little"))

    def _storage(self, run: _Run) -> BlockStored:
        request, spec = run.request, self._specs[run.group]
        size, hash_size = self._block_sizes[run.group], self._hashes.block_size
        blocks = range(run.first_index, run.first_index + len(run.keys))
        start, stop = blocks.start * size, blocks.stop * size
        hashed = range(start // hash_size, stop // hash_size)
        extra_keys = self._extra_keys(request, size, blocks)
        return BlockStored(
            block_hashes=_digests(run.keys, run.group),
            parent_block_hash=run.parent,
            token_ids=request.token_ids[start:stop],
            block_size=size,
            lora_id=None,
            medium=MEDIUM,
            lora_name=request.lora.name if request.lora else None,
            extra_keys=extra_keys,
            group_idx=run.group,
            kv_cache_spec_kind=_KINDS[type(spec)],
            kv_cache_spec_sliding_window=spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None,
            lookahead_token_ids=self._lookahead(request, size, blocks),
            first_block=run.first_index,
            hash_block_size=hash_size if hash_size != size else None,
            hash_extra_keys=self._extra_keys(request, hash_size, hashed) if extra_keys and hash_size != size else None,
            lora_path=request.lora.path if request.lora else None,
            hash_algorithm=self._hashes.hasher.name,
        )

    def _extra_keys(self, request: Request, block_size: int, blocks: range) -> list[ExtraKeys] | None:
        keys = extra_keys_by_block(request, block_size, blocks, self._num_lookahead)
        if not keys:
            return None
        return [[_event_key(key) for key in keys[index]] if index in keys else None for index in blocks]

    def _lookahead(self, request: Request, block_size: int, blocks: range) -> list[list[int]] | None:
        if not self._num_lookahead:
            return None
        ends = [(index + 1) * block_size for index in blocks]
        return [request.token_ids[end : end + self._num_lookahead] for end in ends]


_KINDS: dict[type[KVCacheSpec], str] = {
    FullAttentionSpec: "full_attention",
    SlidingWindowSpec: "sliding_window",
    ChunkedLocalAttentionSpec: "chunked_local_attention",
    MambaSpec: "mamba",
}


def _net_changes(runs: list[_Run], removed: list[bytes]) -> tuple[list[_Run], list[bytes]]:
    """Drop contents that were stored and removed, or removed and stored.

    For one content the two alternate, so the difference of their counts gives the outcome.
    """
    gone = frozenset(removed)
    if all(gone.isdisjoint(run.keys) for run in runs):
        return runs, removed
    balance = Counter(key for run in runs for key in run.keys)
    balance.subtract(removed)
    removed = [key for key in dict.fromkeys(removed) if balance[key] < 0]
    return [part for run in runs for part in _parts(run, balance)], removed


def _parts(run: _Run, balance: Counter[bytes]) -> Iterator[_Run]:
    """Yield the remaining pieces of a run and clear their balance, so that no later run reports them again."""
    start = 0
    for index, key in enumerate([*run.keys, None]):
        if key is not None and balance[key] > 0:
            balance[key] = 0
            continue
        if index > start:
            yield _part(run, start, index)
        start = index + 1


def _part(run: _Run, start: int, stop: int) -> _Run:
    parent = run.keys[start - 1][:DIGEST_BYTES] if start else run.parent
    return run._replace(first_index=run.first_index + start, keys=run.keys[start:stop], parent=parent)


def _digests(keys: Sequence[bytes], group: int) -> list[BlockHash]:
    return [key[:DIGEST_BYTES] for key in keys] if group else [*keys]


def _event_key(key: ExtraKey) -> EventKey:
    match key:
        case LoraKey():
            return key.name
        case MultiModalKey():
            return key.identifier, key.offset
        case SaltKey():
            return salt_name(key.salt)
        case EmbedsKey():
            return _I64.pack(key.offset) + key.digest
        case LookaheadKey():
            raise InvariantError("the lookahead tokens of a block are not an extra key")
