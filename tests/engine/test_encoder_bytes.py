"""Rows become bytes, and these are the bytes that a worker really holds."""

from __future__ import annotations

import pytest
import torch

from mmcached.engine import SharedEncoderCacheManager
from mmcached.engine.encoder_budget import service_encoder_budget
from mmcached.engine.encoder_bytes import EmbeddingRow, EncoderBytes, service_embedding_row
from mmcached.wire.config import ModelConfig
from mmcached.wire.errors import InvariantError
from mmcached.worker.encoder import VisionEncoder
from mmcached.worker.encoder_cache import EncoderCache
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


def test_the_declared_row_is_what_the_encoder_makes() -> None:
    config = small_config(model=ModelConfig(hidden_size=24, encoder_width=16, patch_size=2, encoder_layers=1))
    device = torch.device("cpu")
    embeddings = VisionEncoder(config.model, device).encode(torch.zeros((6, 12), dtype=torch.uint8), (2, 3))
    outputs = EncoderCache()
    outputs.put("a", {"embeddings": embeddings})
    measured = EmbeddingRow.measured(num_embeds=6, nbytes=outputs.stats().nbytes, itemsize=embeddings.itemsize)
    assert measured == service_embedding_row(config)


def test_an_output_of_several_tensors_has_wider_rows() -> None:
    outputs = EncoderCache()
    outputs.put("a", {"embeddings": torch.zeros(3, 8), "inner": torch.zeros(3, 2, 8)})
    assert EmbeddingRow.measured(num_embeds=3, nbytes=outputs.stats().nbytes, itemsize=4) == EmbeddingRow(24, 4)


def test_one_row_is_enough_to_measure() -> None:
    assert EmbeddingRow.measured(num_embeds=1, nbytes=40, itemsize=4) == EmbeddingRow(10, 4)


@pytest.mark.parametrize(("num_embeds", "nbytes"), [(0, 0), (3, 100), (3, 6)])
def test_what_has_no_equal_rows_is_no_measure(num_embeds: int, nbytes: int) -> None:
    with pytest.raises(InvariantError, match="equal rows"):
        EmbeddingRow.measured(num_embeds=num_embeds, nbytes=nbytes, itemsize=4)
