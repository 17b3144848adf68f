"""SGLang's own `get_embedding_and_mask` with the host behind its cache, and what it does on a flush or an update."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers import mm_schedule
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem
from sglang.srt.mem_cache.multimodal_cache import EmbeddingResult
from sglang.srt.runtime_context import get_context

from mmcached.cache.name_files import differences, known_names
from mmcached.client import Client
from mmcached.integrations.sglang.engine_cache import (
    EngineCache,
    clear_after_flush,
    clear_after_update,
    install,
)
from mmcached.integrations.sglang.identity import item_key
from mmcached.wire.errors import ConfigError
from tests.hosts.sglang.conftest import DEADLINE_S
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually

ROWS, WIDTH = 196, 128
CACHE_BYTES = 1 << 26


def hash_of(picture: int) -> int:
    return (picture + 1) * 0x9E3779B97F4A7C15 % 2**64


class Engine:
    """The part of an engine that encodes: a tower that says what it is given, and SGLang's code around it."""

    def __init__(self, cache_bytes: int = CACHE_BYTES) -> None:
        self.encoded: list[int] = []
        mm_schedule.init_mm_embedding_cache(cache_bytes)
        install(None, cache_bytes)
        self.cache: EngineCache = mm_schedule.embedding_cache

    def tower(self, items: list[MultimodalDataItem]) -> torch.Tensor:
        seeds = [int(item.feature[0]) for item in items]
        self.encoded += seeds
        return torch.cat([self.rows(seed, item) for seed, item in zip(seeds, items, strict=True)])

    def rows(self, seed: int, item: MultimodalDataItem) -> torch.Tensor:
        count = sum(end - start + 1 for start, end in item.offsets)
        return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))

    def step(self, *pictures: int, rows: int = ROWS, num_spans: int = 1) -> torch.Tensor:
        """Return the embeddings of one request with these pictures, once they are saved."""
        embedding = self.embed(*pictures, rows=rows, num_spans=num_spans)
        assert self.cache.saver.drain(DEADLINE_S)
        return embedding

    def embed(self, *pictures: int, rows: int = ROWS, num_spans: int = 1) -> torch.Tensor:
        """Return the embeddings of one request with these pictures; of several spans each, as a video has them."""
        mm_schedule.embedding_cache = self.cache
        items, at = [], 5
        for picture in pictures:
            spans = []
            for _ in range(num_spans):
                spans.append((at, at + rows - 1))
                at += rows + 3
            item = MultimodalDataItem(
                modality=Modality.VIDEO if num_spans > 1 else Modality.IMAGE,
                feature=torch.full((4,), float(picture)),
                offsets=spans,
            )
            item.set_hash(hash_of(picture))
            items.append(item)
        ids = torch.zeros(at + 4, dtype=torch.long)
        for item in items:
            for start, end in item.offsets:
                ids[start : end + 1] = item.pad_value
        embedding, _, _ = mm_schedule.get_embedding_and_mask(
            self.tower,
            items,
            torch.tensor(sorted(item.pad_value for item in items)),
            ids,
            [0, len(items)],
            [0],
            [len(ids)],
            [[span for item in items for span in item.offsets]],
        )
        assert isinstance(embedding, torch.Tensor)
        return embedding


@pytest.fixture
def new_engine(environment: None, published: Callable[..., None]) -> Iterator[Callable[..., Engine]]:
    published(dtype="float32")
    engines = []

    def make(**named: Any) -> Engine:
        engines.append(Engine(**named))
        return engines[-1]

    yield make
    mm_schedule.embedding_cache = None
    for engine in engines:
        engine.cache.close()


def test_the_second_engine_encodes_only_what_is_new(store: LoneFrontend, new_engine: Callable[..., Engine]) -> None:
    first, second = new_engine(), new_engine()
    one = first.step(1, 2)
    other = second.step(2, 1, 3)
    assert (first.encoded, second.encoded) == ([1, 2], [3])
    assert second.cache.num_found == 2
    assert torch.equal(other[:ROWS], one[ROWS:])
    assert torch.equal(other[ROWS : 2 * ROWS], one[:ROWS])
    second.step(1)
    assert second.cache.num_found == 2, "SGLang's own cache is asked first"
    eventually(lambda: store.stats().store.saved.encoder_us, lambda saved_us: saved_us > 0, "hits have saved time")


def test_an_item_of_several_spans_is_shared(new_engine: Callable[..., Engine]) -> None:
    first, second = new_engine(), new_engine()
    one = first.step(1, rows=20, num_spans=3)
    assert torch.equal(second.step(1, rows=20, num_spans=3), one)
    assert (first.encoded, second.encoded) == ([1], [])


def test_an_engine_finds_what_its_own_cache_has_no_room_for(new_engine: Callable[..., Engine]) -> None:
    engine = new_engine(cache_bytes=ROWS * WIDTH * 4 - 1)
    first = engine.step(1)
    assert torch.equal(engine.step(1), first)
    assert engine.encoded == [1]


@pytest.mark.parametrize(
    "embedding",
    [
        torch.zeros(1, ROWS, WIDTH),
        torch.zeros(ROWS, WIDTH // 2),
        torch.zeros(ROWS, WIDTH, dtype=torch.int64),
        torch.zeros(ROWS, WIDTH, dtype=torch.bfloat16),
        torch.full((ROWS, WIDTH), torch.nan),
    ],
    ids=["rank 3", "narrow", "int64", "bfloat16", "nan"],
)
def test_a_record_that_the_model_cannot_take_is_replaced(
    new_engine: Callable[..., Engine], environment: None, embedding: torch.Tensor
) -> None:
    """It comes from a program of the same user that puts wrong records under right keys."""
    first, second, third = new_engine(), new_engine(), new_engine()
    key = item_key(first.cache.name.get() or "", hash_of(1))
    with Client(os.environ["MMCACHED_RUN_DIR"], fail_open=False) as writer:
        assert writer.put(key, {"embedding": embedding})
    right = second.step(1)
    assert second.encoded == [1]
    assert torch.equal(third.step(1), right)
    assert third.encoded == []


def test_a_record_with_another_number_of_rows_is_replaced(new_engine: Callable[..., Engine]) -> None:
    first, second, third = new_engine(), new_engine(), new_engine()
    first.step(1, rows=ROWS + 4)
    embedding = second.step(1)
    assert second.encoded == [1]
    assert torch.equal(third.step(1), embedding)
    assert third.encoded == []


@pytest.mark.parametrize("is_update", [False, True])
def test_after_a_flush_or_an_update_nothing_old_is_found_or_handed_on(
    new_engine: Callable[..., Engine], is_update: bool
) -> None:
    engine, other = new_engine(), new_engine()
    engine.step(1)
    mm_schedule.embedding_cache = engine.cache
    if is_update:
        clear_after_update(SimpleNamespace(success=False), object())
    else:
        clear_after_flush(True)
    engine.step(1)
    assert engine.encoded == [1, 1]
    engine.step(7)
    other.step(7)
    assert other.encoded == [7], "what new weights gave is nothing for others"


def test_a_flush_that_was_refused_changes_nothing(new_engine: Callable[..., Engine]) -> None:
    engine = new_engine()
    engine.step(1)
    clear_after_flush(False)
    engine.step(1)
    assert engine.encoded == [1]


def test_what_is_more_than_a_tensor_is_not_shared(new_engine: Callable[..., Engine]) -> None:
    class Pruned(EmbeddingResult):
        pass

    first, second = new_engine(), new_engine()
    first.cache.set(5, Pruned(embedding=torch.zeros(2, 2)))
    assert first.cache.saver.drain(DEADLINE_S)
    assert second.cache.get_single(5) is None


def test_items_without_a_name_are_not_shared(new_engine: Callable[..., Engine]) -> None:
    first, second = new_engine(), new_engine()
    first.cache.set(None, EmbeddingResult(embedding=torch.zeros(2, 2)))
    assert first.cache.saver.drain(DEADLINE_S)
    assert second.cache.get_single(None) is None


def test_an_engine_goes_on_without_its_service(store: LoneFrontend, new_engine: Callable[..., Engine]) -> None:
    first, second = new_engine(), new_engine()
    one = first.step(1)
    store.kill()
    assert torch.equal(second.step(1, 2)[:ROWS], one)
    assert torch.equal(first.step(1, 2)[:ROWS], one)
    store.start()
    first.step(8)
    second.step(8)
    assert 8 in first.encoded


def test_equal_checkpoints_share_wherever_they_lie(
    new_engine: Callable[..., Engine], published: Callable[..., None], checkpoint: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for file in checkpoint.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    first = new_engine()
    first.step(1)
    published(model_path=str(copy), dtype="float32")
    second = new_engine()
    second.step(1)
    assert second.encoded == []
    config = copy / "config.json"
    config.write_text(config.read_text() + "\n")
    third = new_engine()
    third.step(1)
    assert third.encoded == [1]


@pytest.mark.parametrize(
    "changed",
    [
        {"dtype": "bfloat16"},
        {"quantization": "fp8"},
        {"mm_attention_backend": "sdpa"},
        {"enable_precise_embedding_interpolation": True},
        {"disable_fast_image_processor": True},
    ],
)
def test_other_arguments_share_nothing(
    new_engine: Callable[..., Engine], published: Callable[..., None], changed: dict[str, Any]
) -> None:
    new_engine().step(1)
    published(**{"dtype": "float32"} | changed)
    other = new_engine()
    other.step(1)
    assert other.encoded == [1]


def test_another_way_of_computing_shares_nothing(
    new_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = new_engine()
    first.step(1)
    with monkeypatch.context() as changed:
        changed.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
        by_variable = new_engine()
    torch.set_float32_matmul_precision("medium")
    try:
        by_switch = new_engine()
    finally:
        torch.set_float32_matmul_precision("highest")
    for other in (by_variable, by_switch):
        other.step(1)
        assert other.encoded == [1]
    rows = list(known_names(Path(os.environ["MMCACHED_RUN_DIR"])).values())
    parts = [{part for part, _, _ in differences(each, rows[-1])} for each in rows]
    assert parts == [{"precision.fp32"}, {"variables.ONEDNN_MAX_CPU_ISA"}, set()]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"load_format": "dummy"}, "MMCACHED_NAMESPACE.*--load-format dummy"),
    ],
)
def test_what_cannot_be_shared_is_refused(
    environment: None, published: Callable[..., None], arguments: dict[str, Any], says: str
) -> None:
    published(**arguments)
    with pytest.raises(ConfigError, match=says):
        EngineCache(CACHE_BYTES)


def test_a_checkpoint_that_is_not_on_this_host_is_refused(environment: None, published: Callable[..., None]) -> None:
    published()
    get_context().override("test", model_path="nobody/nothing")
    with pytest.raises(ConfigError, match=r"MMCACHED_NAMESPACE.*nobody/nothing"):
        EngineCache(CACHE_BYTES)


def test_a_name_for_the_weights_is_taken_instead(
    environment: None, published: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    published(load_format="dummy")
    monkeypatch.setenv("MMCACHED_NAMESPACE", "seed 0")
    EngineCache(CACHE_BYTES).close()
