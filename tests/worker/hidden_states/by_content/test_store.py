"""TensorPrefixStore, case by case: hits, schema, room, steps, memory."""

from __future__ import annotations

import dataclasses
import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.wire.errors import ConfigError, InvalidRequest, LocalProtocolError
from mmcached.worker.hidden_states import KeySpec, RowChunk, RowSpan, TensorPrefixStore
from tests.worker.hidden_states.by_content.cases import (
    BLOCK,
    BLOCK_NBYTES,
    CODES,
    HIDDEN,
    MIB,
    WIDTH,
    chunk_of,
    errors,
    hidden,
    make_store,
    missing,
    names_of,
    write,
)

# ---- keys


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (torch.zeros(4, WIDTH + 1), "hidden_states.shape = '(4, 4)': must be (4, 3)"),
        (torch.zeros(4, 1), "hidden_states.shape = '(4, 1)': must be (4, 3)"),
        (torch.zeros(1, WIDTH), "hidden_states.shape = '(1, 3)': must be (4, 3)"),
        (torch.zeros(5, WIDTH), "hidden_states.shape = '(5, 3)': must be (4, 3)"),
        (torch.zeros(4, WIDTH, 1), "hidden_states.shape = '(4, 3, 1)': must be (4, 3)"),
        (torch.zeros(4, WIDTH, dtype=torch.float16), "hidden_states.dtype = 'torch.float16': must be torch.float32"),
        (torch.tensor(1.0), "hidden_states.shape = '()': must be (4, 3)"),
        ([1, 2, 3, 4], "hidden_states = 'list': must be a tensor (4, 3)"),
        (None, "hidden_states = 'NoneType': must be a tensor"),
    ],
)
def test_a_value_that_does_not_fit_its_key_is_refused_and_nothing_else(wrong: object, said: str) -> None:
    store = make_store(HIDDEN, CODES)
    chunks = [chunk_of(0, "abc"), chunk_of(1, "z")]
    codes = torch.arange(16).reshape(4, 2, 2)
    (refusal,) = store.write(chunks, {"hidden_states": wrong, "codes": codes})
    assert (refusal.key, refusal.request_id) == ("hidden_states", None)
    assert str(refusal.error).startswith(said)
    store.commit()
    assert missing(store, 0, 0, 3) == (0, 3)
    with store.read([RowSpan(0, 0, 3), RowSpan(1, 0, 1)], ["codes"]) as rows:
        assert torch.equal(torch.cat([rows.get("codes", 0), rows.get("codes", 1)]), codes)
    assert store.stats().refusals == 1


def test_keys_are_not_declared_within_a_step() -> None:
    store = make_store()
    store.write([chunk_of(0, "a")], {"hidden_states": torch.zeros(1, WIDTH)})
    store.declare(HIDDEN)
    with pytest.raises(LocalProtocolError, match="between two steps"):
        store.declare(HIDDEN, CODES)
    assert store.schema == {"hidden_states": HIDDEN}
    store.withdraw()
    store.declare(CODES)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), torch.bool),
        ((3,), torch.uint8),
        ((5,), torch.bfloat16),
        ((2, 3, 4), torch.float16),
        ((7,), torch.float8_e4m3fn),
        ((3,), torch.complex64),
        ((1,), torch.int64),
        ((9,), torch.float64),
    ],
)
def test_rows_of_any_shape_and_dtype_come_back_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    spec = KeySpec("k", shape, dtype)
    store = TensorPrefixStore(BLOCK, [spec], byte_budget=100 * BLOCK * spec.row_nbytes)
    given = (torch.rand(9, *shape) * 100).to(dtype)
    assert store.write([chunk_of(0, "abcdefghi")], {"k": given}) == []
    with store.read([RowSpan(0, 0, 9), RowSpan(0, 3, 4)], ["k"]) as rows:
        whole, one = rows.get("k", 0), rows.get("k", 1)
        assert (whole.dtype, whole.shape) == (dtype, given.shape)
        assert whole.reshape(9, -1).contiguous().view(torch.uint8).equal(given.reshape(9, -1).view(torch.uint8))
        assert one.reshape(1, -1).view(torch.uint8).equal(given[3:4].reshape(1, -1).view(torch.uint8))


def test_rows_of_every_layout_in_memory_are_taken() -> None:
    store = make_store()
    wide = torch.rand(WIDTH, 16).t()[::2]
    needs_grad = torch.rand(2, WIDTH, requires_grad=True)
    odd = torch.rand(9 * WIDTH)[1 : 1 + 2 * WIDTH].view(2, WIDTH)
    for start, rows in ((0, wide), (8, needs_grad), (10, odd)):
        assert store.write([RowChunk(0, start, len(rows))], {"hidden_states": rows}) == []
    with store.read([RowSpan(0, 0, 12)], ["hidden_states"]) as found:
        assert torch.equal(found.get("hidden_states", 0), torch.cat([wide, needs_grad.detach(), odd]))


# ---- room


# ---- steps


# ---- reading


def test_buffers_are_used_again_up_to_a_limit() -> None:
    store = TensorPrefixStore(BLOCK, [HIDDEN], byte_budget=10 * BLOCK_NBYTES, buffer_nbytes=5000)
    write(store, chunk_of(0, "abcdefgh"))
    first = store.read([RowSpan(0, 0, 8)], ["hidden_states"])
    address = first.get("hidden_states", 0).data_ptr()
    second = store.read([RowSpan(0, 0, 8)], ["hidden_states"])
    assert second.get("hidden_states", 0).data_ptr() != address
    first.release()
    second.release()
    assert store.stats().pooled_nbytes == 4096
    with store.read([RowSpan(0, 0, 8)], ["hidden_states"]) as third:
        assert third.get("hidden_states", 0).data_ptr() == address
        assert store.stats().pooled_nbytes == 0


# ---- memory


def resident_bytes() -> int:
    gc.collect()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def test_memory_is_taken_as_it_is_used_and_given_back_by_a_reset() -> None:
    wide = KeySpec("hidden_states", (2048,), torch.bfloat16)
    before = resident_bytes()
    store = TensorPrefixStore(16, [wide], byte_budget=1 << 30)
    assert resident_bytes() - before <= 16 * MIB
    rows = torch.zeros(16 * 512, 2048, dtype=torch.bfloat16)
    with_rows = resident_bytes()
    store.write([RowChunk(0, 0, len(rows))], {"hidden_states": rows})
    store.commit()
    assert 30 * MIB <= resident_bytes() - with_rows <= 48 * MIB
    store.reset()
    assert resident_bytes() - with_rows <= 16 * MIB
    assert store.stats().blocks == 0


def test_memory_of_what_a_late_key_has_driven_out_is_given_back() -> None:
    page = 4096
    spec = KeySpec("k", (page // BLOCK,), torch.uint8)
    store = TensorPrefixStore(BLOCK, [spec], byte_budget=4000 * page)
    rows = torch.ones(4000 * BLOCK, page // BLOCK, dtype=torch.uint8)
    store.write([RowChunk(0, 0, len(rows))], {"k": rows})
    store.commit()
    before = resident_bytes()
    store.declare(KeySpec("late", (page // BLOCK,), torch.uint8))
    assert store.stats().blocks == 2000
    assert before - resident_bytes() >= 6 * MIB


# ---- what cannot be


SETTINGS: dict[str, Any] = {"block_size": BLOCK, "schema": [HIDDEN], "byte_budget": 1}


@pytest.mark.parametrize(
    "setting",
    [
        {"block_size": 0},
        {"byte_budget": -1},
        {"byte_budget": 1.5},
        {"max_positions": 0},
        {"buffer_nbytes": -1},
        {"staged_byte_limit": -1},
        {"staged_byte_limit": "1"},
    ],
)
def test_settings_that_cannot_be(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        TensorPrefixStore(**(SETTINGS | setting))
    assert caught.value.details["field"] in setting


def test_positions_beyond_the_limit_are_refused_before_anything_grows_with_them() -> None:
    store = TensorPrefixStore(BLOCK, [HIDDEN], byte_budget=MIB, max_positions=8)
    chunks = [RowChunk(0, 7, 1), RowChunk(1, 7, 2), RowChunk(2, 10**30, 1), RowChunk(3, 0, 10**30), RowChunk(4, 8, 1)]
    refusals = store.write(chunks, {"hidden_states": torch.zeros(5, WIDTH)})
    assert [(refusal.key, refusal.request_id) for refusal in refusals] == [("", 1), ("", 2), ("", 3), ("", 4)]
    assert "0 … 7" in str(refusals[0].error)
    assert store.stats().requests == 1
    for first, end in ((0, 9), (8, 9), (10**30, 10**30 + 1)):
        with pytest.raises(InvalidRequest, match=r"request 5: must be 0 <= first < end <= 8"):
            store.read([RowSpan(0, 0, 8), RowSpan(5, first, end)], ["hidden_states"])
    store.commit()


@pytest.mark.parametrize(
    "chunk",
    [RowChunk(0, 0.5, 1), RowChunk(0, 0, 1.0), RowChunk(0, "0", 1), RowChunk(0, 0, None)],  # type: ignore[arg-type]
)
def test_positions_are_integers_and_never_truncated(chunk: RowChunk) -> None:
    store = make_store()
    with pytest.raises(InvalidRequest, match="chunks"):
        store.write([RowChunk(1, 0, 1), chunk], {"hidden_states": torch.zeros(2, WIDTH)})
    with pytest.raises(InvalidRequest, match="spans"):
        store.read([RowSpan(1, 0, 1), RowSpan(0, chunk.start, chunk.num_rows)], ["hidden_states"])
    assert store.stats().requests == 0
    refusals = store.write([RowChunk(0, 0, 1, 0.5, names_of("abcd"))], {})  # type: ignore[arg-type]
    assert errors(refusals) == {"": "first_block = '0.5': must be an integer"}


@pytest.mark.parametrize("num_rows", [-5, 1 << 25, 1.0, None])
def test_a_prefix_has_a_length(num_rows: Any) -> None:
    with pytest.raises(InvalidRequest, match="num_rows"):
        make_store().usable_prefix([], num_rows, ["hidden_states"])


def test_a_key_that_cannot_be_mapped_changes_nothing() -> None:
    store = make_store()
    write(store, chunk_of(0, "abcd"))
    with pytest.raises(ConfigError, match="huge"):
        store.declare(KeySpec("huge", (1 << 55,), torch.int8))
    assert store.schema == {"hidden_states": HIDDEN}
    assert store.stats().capacity_blocks == 100
    assert hidden(store, 0, 0, 4) == [0, 1, 2, 3]


# ---- a step whose requests stand behind each other


def test_a_guess_is_not_found_under_a_name_after_a_write_that_has_failed() -> None:
    other = dataclasses.replace(HIDDEN, name="other")
    store = make_store(HIDDEN, other)
    rows = torch.ones((4, WIDTH))
    store.write([RowChunk(1, 0, 4)], {"hidden_states": rows, "other": rows})  # position 3 is a guess
    store.commit()
    fails = {"hidden_states": torch.empty((1, WIDTH), device="meta"), "other": rows[:1]}
    with pytest.raises(NotImplementedError):
        store.write([RowChunk(1, 3, 1, 0, names_of("abcd"))], fails)
    store.withdraw()
    store.commit()
    assert store.usable_prefix(names_of("abcd"), 4, ["hidden_states"]) == 3
    assert store.usable_prefix(names_of("abcd"), 4, ["other"]) == 3
