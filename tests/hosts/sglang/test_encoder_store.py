"""SGLang's own cache controllers, as two encoder servers over one store.

Its pools are pinned and filled from a GPU. Here they are not pinned, and the GPU is one in name.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.schedule_batch import Modality
from sglang.srt.mem_cache import embedding_cache_controller as controllers
from sglang.srt.mem_cache.embedding_cache_controller import EmbeddingCacheController
from sglang.srt.mem_cache.embedding_store import EmbeddingStoreFactory

from mmcached.integrations.sglang.embedding_store import MmcachedEmbeddingStore
from tests.hosts.sglang.conftest import DEADLINE_S
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually

WIDTH = 2048
POOL_GB = 0.05

Embeddings = dict[str, torch.Tensor]


class OnGpu(torch.Tensor):
    """A tensor of the CPU that says it is on a GPU."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # there it is a plain attribute
        return torch.device("cuda", 0)

    def record_stream(self, stream: object) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose streams are done at once."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    event = SimpleNamespace(record=lambda stream: None, query=lambda: True, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)


@pytest.fixture
def new_server(
    environment: None, gpu: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], EmbeddingCacheController]]:
    monkeypatch.setenv("MMCACHED_NAMESPACE", "tiny@1, bfloat16")
    alone = SimpleNamespace(tp_size=1, tp_rank=0, tp_group=SimpleNamespace(cpu_group=None))
    monkeypatch.setattr(controllers, "get_parallel", lambda: alone)
    create = controllers.EmbeddingPool.create
    monkeypatch.setattr(controllers.EmbeddingPool, "create", lambda *given: create(*given[:4], pin_memory=False))
    name = "mmcached, for a test"
    EmbeddingStoreFactory.register_backend(name, MmcachedEmbeddingStore.__module__, "MmcachedEmbeddingStore")
    servers = []

    def make() -> EmbeddingCacheController:
        servers.append(
            EmbeddingCacheController(
                embedding_store=EmbeddingStoreFactory.create_backend(name),
                max_pool_size_gb=POOL_GB,
                hidden_dims={Modality.IMAGE: WIDTH},
                dtype=torch.bfloat16,
            )
        )
        return servers[-1]

    yield make
    for server in servers:
        server.stop_event.set()
        server.io_thread.join()
        server.embedding_store.close()


def encode(server: EmbeddingCacheController, embeddings: Embeddings) -> None:
    """Have a server keep embeddings as after its tower, and insert them into the store."""
    made = [embedding.as_subclass(OnGpu) for embedding in embeddings.values()]
    server.wait_store_to_pool(server.store_to_pool_async(list(embeddings), made, Modality.IMAGE))
    server.insert_batch(list(embeddings), Modality.IMAGE)
    eventually(server.get_stats, lambda now: now["num_pinned"] == 0, "pages are let go of")
    assert server.embedding_store.saver.drain(DEADLINE_S)


def prefetch(server: EmbeddingCacheController, embeddings: Embeddings, num_more: int = 0) -> Embeddings:
    """Return what a server has of these after a prefetch."""
    server.prefetch("request", list(embeddings), [len(x) + num_more for x in embeddings.values()], Modality.IMAGE)
    eventually(lambda: server.check_prefetch_progress("request"), bool, "the prefetch ends")
    views = server.get_pool_views(list(embeddings))
    found = {name: torch.cat(parts) for name, parts in zip(embeddings, views, strict=True) if parts is not None}
    server.release_pool_views(list(found))
    return found


def exist(server: EmbeddingCacheController, names: list[str]) -> list[bool]:
    answer: list[bool] = asyncio.run(server.batch_is_exist(names))
    return answer


def draw(count: int, seed: int = 0) -> Embeddings:
    """Return embeddings of several sizes by the names that SGLang gives them: numbers of 64 bits."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [196 + 37 * number for number in range(count)]
    return {
        str((seed * 1000 + number + 1) * 0x9E3779B97F4A7C15 % 2**64): torch.randn(
            size, WIDTH, generator=generator
        ).bfloat16()
        for number, size in enumerate(sizes)
    }


def assert_same(found: Embeddings, wanted: Embeddings) -> None:
    assert found.keys() == wanted.keys()
    for name, embedding in wanted.items():
        assert torch.equal(found[name], embedding), name


def test_what_one_server_has_encoded_another_prefetches(new_server: Callable[[], EmbeddingCacheController]) -> None:
    one, other = new_server(), new_server()
    embeddings = draw(6)
    assert exist(other, list(embeddings)) == [False] * 6
    encode(one, embeddings)
    assert exist(other, [*embeddings, "18446744073709551615"]) == [True] * 6 + [False]
    assert_same(prefetch(other, embeddings), embeddings)


def test_another_number_of_rows_is_a_miss(new_server: Callable[[], EmbeddingCacheController]) -> None:
    one, other = new_server(), new_server()
    embeddings = draw(2)
    encode(one, embeddings)
    assert prefetch(other, embeddings, num_more=1) == {}
    assert other.get_stats()["num_cached"] == 0
    assert_same(prefetch(other, embeddings), embeddings)


def test_an_embedding_in_pieces_is_the_same(new_server: Callable[[], EmbeddingCacheController]) -> None:
    """The pool's free pages are torn, so that the embedding lies in several runs of them, on both sides."""
    one, other = new_server(), new_server()
    embeddings = draw(1)
    for server in (one, other):
        pages = server.vision_pool.allocator
        pages.free_ranges = [(start, 1) for start in range(0, pages.free_pages, 2)]
    encode(one, embeddings)
    assert len(one.entries[next(iter(embeddings))].page_runs) > 1
    assert_same(prefetch(other, embeddings), embeddings)


def test_other_weights_have_other_embeddings(
    new_server: Callable[[], EmbeddingCacheController], monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings = draw(2)
    encode(new_server(), embeddings)
    monkeypatch.setenv("MMCACHED_NAMESPACE", "tiny@2, bfloat16")
    assert exist(new_server(), list(embeddings)) == [False, False]


def test_a_killed_service_is_a_miss_and_comes_back(
    store: LoneFrontend, new_server: Callable[[], EmbeddingCacheController]
) -> None:
    one, other = new_server(), new_server()
    before, meanwhile = draw(2, seed=1), draw(2, seed=2)
    later = (draw(2, seed=seed) for seed in itertools.count(3))
    encode(one, before)
    store.kill()
    encode(one, meanwhile)
    assert exist(other, list(meanwhile)) == [False, False]
    assert prefetch(other, meanwhile) == {}
    store.start()

    def encode_more() -> Embeddings:
        encode(one, more := next(later))
        return more

    after = eventually(encode_more, lambda more: all(exist(other, list(more))), "the new service keeps and answers")
    assert_same(prefetch(other, after), after)
