"""Budgets and books in rows become bytes."""

from __future__ import annotations

from mmcached.engine import SharedEncoderCacheManager
from mmcached.engine.encoder.encoder_budget import service_encoder_budget
from mmcached.engine.encoder.encoder_bytes import EmbeddingRow, EncoderBytes
from tests.engine.builders import encode, small_config


def test_budgets_and_books_in_bytes() -> None:
    config = small_config(max_patches=600, max_num_encoder_input_tokens=700, encoder_cache_size=1000)
    budget = service_encoder_budget(config)
    book = SharedEncoderCacheManager(budget.cache_size)
    held, idle = encode(1, ("a", 100)), encode(2, ("b", 30))
    book.allocate(held, 0)
    book.allocate(idle, 0)
    book.free(idle)
    assert EncoderBytes.of(budget, book, EmbeddingRow(width=10, itemsize=2)) == EncoderBytes(
        compute_bytes=14_000, cache_bytes=20_000, used_bytes=2_600, freeable_bytes=18_000
    )
