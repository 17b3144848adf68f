"""KV events on the wire: readers of vLLM's events can read them, and they can read vLLM's."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mmcached.wire.messages.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEventBatch,
    salt_name,
)

STORED = BlockStored(
    block_hashes=[b"\1" * 32, b"\2" * 32],
    parent_block_hash=b"\0" * 32,
    token_ids=[1, 2, 3, 4],
    block_size=2,
    lora_id=None,
    medium="GPU",
    lora_name="adapter",
    extra_keys=[["adapter", ["m" * 64, -1]], None],
    group_idx=1,
    kv_cache_spec_kind="sliding_window",
    kv_cache_spec_sliding_window=8,
    first_block=3,
    lora_path="path",
    hash_algorithm="sha256",
)
BATCH = KVEventBatch(12.5, [AllBlocksCleared(), STORED, BlockRemoved([b"\3" * 32], "GPU", 1)], 2)


class ReaderEvent(msgspec.Struct, tag=True, omit_defaults=True):
    """What a router has that was written for vLLM: the same names, in the same order, and no more."""


class ReaderStored(ReaderEvent, tag="BlockStored"):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class ReaderRemoved(ReaderEvent, tag="BlockRemoved"):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class ReaderCleared(ReaderEvent, tag="AllBlocksCleared"):
    pass


class ReaderBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[ReaderStored | ReaderRemoved | ReaderCleared]
    data_parallel_rank: int | None = None


def test_a_reader_of_vllm_s_events_reads_ours() -> None:
    batch = msgspec.msgpack.decode(msgspec.msgpack.encode(BATCH), type=ReaderBatch)
    cleared, stored, removed = batch.events
    assert (batch.ts, batch.data_parallel_rank) == (12.5, 2)
    assert isinstance(cleared, ReaderCleared)
    assert isinstance(stored, ReaderStored)
    assert stored.extra_keys == [("adapter", ["m" * 64, -1]), None]
    for field in ReaderStored.__struct_fields__:
        if field != "extra_keys":
            assert getattr(stored, field) == getattr(STORED, field)
    assert isinstance(removed, ReaderRemoved)
    assert (removed.block_hashes, removed.medium, removed.group_idx) == ([b"\3" * 32], "GPU", 1)


def test_our_names_come_behind_theirs() -> None:
    assert BlockStored.__struct_fields__[: len(ReaderStored.__struct_fields__)] == ReaderStored.__struct_fields__
    assert BlockRemoved.__struct_fields__ == ReaderRemoved.__struct_fields__


def test_a_batch_is_an_array_of_three_and_an_event_a_map_that_begins_with_its_type() -> None:
    """Some readers take neither more nor fewer, and look at the type first."""
    for batch in (BATCH, msgspec.structs.replace(BATCH, data_parallel_rank=None)):
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(batch))
        assert isinstance(plain, list)
        assert len(plain) == 3
        assert [next(iter(event.items())) for event in plain[1]] == [
            ("type", "AllBlocksCleared"),
            ("type", "BlockStored"),
            ("type", "BlockRemoved"),
        ]
        assert {"lora_id", "parent_block_hash", "medium"} <= plain[1][1].keys(), "vLLM always has them"


def test_vllm_s_own_are_read_with_whatever_fields_come_later() -> None:
    event = {
        "type": "BlockStored",
        "block_hashes": [2**64 - 1],
        "parent_block_hash": None,
        "token_ids": [1],
        "block_size": 1,
        "lora_id": 3,
        "medium": "CPU",
        "lora_name": None,
        "something": "new",
    }
    batch = msgspec.msgpack.decode(msgspec.msgpack.encode([1.0, [event]]), type=KVEventBatch)
    (stored,) = batch.events
    assert isinstance(stored, BlockStored)
    assert (stored.block_hashes, stored.medium, stored.first_block, batch.data_parallel_rank) == (
        [2**64 - 1],
        "CPU",
        None,
        None,
    )


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([1.0]), msgspec.msgpack.encode([1.0, [{}]])])
def test_what_is_no_batch_does_not_validate(payload: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.msgpack.decode(payload, type=KVEventBatch)


def test_a_salt_s_name_tells_salts_apart_and_is_not_taken_for_an_item() -> None:
    names = {salt_name(salt) for salt in ("", "a", "b", "a" * 1000, "\udcff")}
    assert len(names) == 5
    assert all(len(name) != 64 and name.startswith("salt:") for name in names)
