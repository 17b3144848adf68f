"""Small stores, chunks of letters, and questions to a store: the vocabulary of the tests case by case."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
import torch

from mmcached.wire.errors import MissingRows
from mmcached.worker.hidden_states import KeySpec, RefusedRows, RowChunk, RowSpan, TensorPrefixStore
from tests.worker.integrity import check_prefix_store

BLOCK, WIDTH = 4, 3
HIDDEN = KeySpec("hidden_states", (WIDTH,), torch.float32)
CODES = KeySpec("codes", (2, 2), torch.int64)
BLOCK_NBYTES = BLOCK * HIDDEN.row_nbytes
MIB = 1 << 20


def make_store(*specs: KeySpec, num_blocks: int = 100) -> TensorPrefixStore:
    """Return a store with room for so many blocks of hidden states."""
    return TensorPrefixStore(BLOCK, specs or (HIDDEN,), byte_budget=num_blocks * BLOCK_NBYTES)


def names_of(tokens: str) -> list[bytes]:
    """Return the names of a sequence's full blocks; a letter is a token."""
    return [hashlib.sha256(tokens[:end].encode()).digest() for end in range(BLOCK, len(tokens) + 1, BLOCK)]


def chunk_of(request_id: int, tokens: str, start: int = 0, end: int | None = None) -> RowChunk:
    """Return a chunk of a request, with the names of all blocks of its tokens up to the chunk's end."""
    end = len(tokens) if end is None else end
    return RowChunk(request_id, start, end - start, 0, names_of(tokens)[: -(-end // BLOCK)])


def hidden_of(chunk: RowChunk, base: float = 0) -> torch.Tensor:
    """Return rows that hold their position."""
    positions = torch.arange(chunk.start, chunk.start + chunk.num_rows, dtype=torch.float32)
    return (positions + base).unsqueeze(1).expand(-1, WIDTH).contiguous()


def write(store: TensorPrefixStore, *chunks: RowChunk, base: float = 0) -> None:
    rows = torch.cat([hidden_of(chunk, base) for chunk in chunks])
    assert store.write(chunks, {"hidden_states": rows}) == []
    store.commit()
    check_prefix_store(store)


def hidden(store: TensorPrefixStore, request_id: int, first: int, end: int) -> list[float]:
    with store.read([RowSpan(request_id, first, end)], ["hidden_states"]) as rows:
        return rows.get("hidden_states", 0)[:, 0].tolist()


def missing(store: TensorPrefixStore, request_id: int, first: int, end: int, key: str = "hidden_states") -> object:
    with store.read([RowSpan(request_id, first, end)], [key]) as rows:
        with pytest.raises(MissingRows) as raised:
            rows.get(key, 0)
        assert rows.all(key) == [None]
    assert raised.value.details["key"] == key
    return raised.value.details["first"], raised.value.details["end"]


def errors(refusals: Sequence[RefusedRows]) -> dict[str, str]:
    return {refusal.key: str(refusal.error) for refusal in refusals}
