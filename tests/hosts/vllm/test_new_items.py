"""A new item is answered before it is put, whatever becomes of the put: real parts of vLLM, a real store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from vllm.multimodal.cache.shm import ShmObjectStoreSenderCache
from vllm.multimodal.processing import BaseMultiModalProcessor

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Claim, Client
from mmcached.integrations.processed_inputs import item_saver
from mmcached.integrations.processed_inputs.items import keys_of
from mmcached.integrations.processed_inputs.vllm_cache import MmcachedProcessorCache
from mmcached.integrations.processed_inputs.vllm_named import note_named_items
from tests.hosts.vllm.engine_ends import Engine
from tests.hosts.vllm.processing import Server, digest, picture
from tests.hosts.vllm.sharing import store_config
from tests.hosts.vllm.test_processed_inputs import item
from tests.integration.processes import role_pids

DEADLINE_S = 60.0
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("qwen2_5_vl")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a put wait for a stopped store for as long as the test may last."""
    monkeypatch.setattr(item_saver, "PUT_S", DEADLINE_S)


@pytest.fixture
def service(service_dir: Path, tmp_path: Path) -> Iterator[ChildService]:
    with ChildService(service_dir / "n", store_config(), tmp_path / "config.json") as service:
        yield service


@pytest.fixture
def new_engine(model: Path, service: ChildService) -> Iterator[Callable[..., Engine]]:
    with ExitStack() as stack:
        yield lambda **named: stack.enter_context(Engine(model, service.run_dir, **named))


def wanted(model: Path, *seeds: int) -> list[str]:
    """Return the digests of what vLLM makes of pictures without mmcached."""
    rendered = Server(model, None).render([picture(seed) for seed in seeds])
    return [digest(each) for each in rendered["mm_kwargs"]["image"]]


def run(engine: Engine, *seeds: int) -> list[str]:
    return [digest(each) for each in engine.run(*seeds)]


def frontend_of(service: ChildService) -> int:
    return role_pids(service.process.pid)["frontend"][0]


def stop_while_processing(engine: Engine, service: ChildService) -> int:
    """Stop the frontend when a processor next begins, once the claim is there; return its process id."""
    frontend = frontend_of(service)

    def stop() -> None:
        engine.server.before_run = lambda: None
        os.kill(frontend, signal.SIGSTOP)

    engine.server.before_run = stop
    return frontend


def test_the_answer_does_not_wait_for_the_store(
    model: Path, service: ChildService, new_engine: Callable[..., Engine]
) -> None:
    first, second = new_engine(), new_engine()
    run(second, 1)
    frontend = stop_while_processing(first, service)
    try:
        assert run(first, 2) == wanted(model, 2)
        assert not first.sender.drain(0), "the store has not answered"
        assert run(first, 2) == wanted(model, 2)
        assert first.sender.num_processed == 1
    finally:
        os.kill(frontend, signal.SIGCONT)
    first.drain()
    assert run(second, 2) == wanted(model, 2)
    assert second.sender.num_processed == 1, "only its own picture"


def test_a_store_that_is_killed_during_a_put(
    model: Path, service: ChildService, new_engine: Callable[..., Engine]
) -> None:
    first, second = new_engine(), new_engine()
    frontend = stop_while_processing(first, service)
    assert run(first, 3) == wanted(model, 3)
    os.kill(frontend, signal.SIGKILL)
    first.drain()
    for engine in (first, second, first):
        assert run(engine, 3) == wanted(model, 3)
        assert run(engine, 4) == wanted(model, 4)
    assert first.sender.num_processed == 2


def test_a_server_that_ends_leaves_its_items_to_others(
    model: Path, new_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(item_saver, "DELAY_S", DEADLINE_S)
        first = new_engine()
    second = new_engine()
    assert run(first, 5) == wanted(model, 5)
    first.close()
    assert run(second, 5) == wanted(model, 5)
    assert second.sender.num_processed == 1


def test_a_server_with_several_api_processes_finds_what_waits(
    model: Path, service: ChildService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is kept in its process once the store has it; what the store does not keep stays in the process."""
    monkeypatch.setattr(item_saver, "DELAY_S", DEADLINE_S)
    config, mm_hash = Server(model, None).config, "8" * 64
    with Client(service.run_dir) as client:
        cache = MmcachedProcessorCache(config, client)
        assert cache.is_cached([mm_hash]) == [False]
        made, _ = cache.get_and_update_item((item(), []), mm_hash)
        cache.forget_request()
        assert cache.is_cached([mm_hash]) == [True]
        assert cache.get_and_update_item(None, mm_hash)[0] is made
        monkeypatch.setattr(item_saver, "MAX_UNSAVED_BYTES", 1)
        other = MmcachedProcessorCache(config, Client(service.run_dir))
        assert other.is_cached(["9" * 64]) == [False]
        made, _ = other.get_and_update_item((item(), []), "9" * 64)
        other.forget_request()
        assert other.is_cached(["9" * 64]) == [True]
        assert other.get_and_update_item(None, "9" * 64)[0] is made
        assert other.num_not_shared == 1
        other.close()
        cache.close()


def test_no_more_items_wait_than_may(
    model: Path, new_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(item_saver, "MAX_UNSAVED_BYTES", 1)
        first = new_engine()
    second = new_engine()
    for engine in (first, second):
        assert run(engine, 6) == wanted(model, 6)
    assert (first.sender.num_processed, second.sender.num_processed) == (1, 1)


def test_a_request_that_fails_leaves_its_items_to_others(
    model: Path, service: ChildService, new_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = BaseMultiModalProcessor._cached_apply_hf_processor
    monkeypatch.setattr(BaseMultiModalProcessor, "_cached_apply_hf_processor", process)
    note_named_items(BaseMultiModalProcessor)
    engine = new_engine()

    def fail() -> None:
        raise ValueError("a picture that is too narrow")

    engine.server.before_run = fail
    with pytest.raises(ValueError, match="Failed to apply"):
        engine.send([picture(41)])
    engine.server.before_run = lambda: None
    (mm_hash,) = Server(model, None).render([picture(41)])["mm_hashes"]["image"]
    with Client(service.run_dir) as client:
        (claim,) = client.claim_many([keys_of(engine.sender._processor, mm_hash)[0]])
        assert isinstance(claim, Claim), "no process makes it"


@pytest.mark.parametrize("own", ["lru", "shm"])
def test_a_forgotten_name_is_new(
    model: Path, new_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    """Also for the server that has processed the picture, whose engine still has it."""
    process = BaseMultiModalProcessor._cached_apply_hf_processor
    monkeypatch.setattr(BaseMultiModalProcessor, "_cached_apply_hf_processor", process)
    note_named_items(BaseMultiModalProcessor)
    engine = new_engine(has_named=True)
    if own == "shm":  # which keeps what is invalidated
        monkeypatch.setattr(engine.sender._own, "invalidate", lambda mm_hash: None)
    assert ShmObjectStoreSenderCache.invalidate.__qualname__.startswith("Base"), "it does"

    def ask(seed: int | None) -> list[str]:
        engine.send([None if seed is None else picture(seed)], ["cat"])
        return [digest(each) for each in engine.receive()]

    assert ask(11) == wanted(model, 11)
    assert ask(None) == wanted(model, 11), "before the name is in the store"
    engine.drain()
    assert ask(None) == wanted(model, 11)
    assert engine.client.forget(f"vllm/{model}/cat")
    assert ask(12) == wanted(model, 12)
    engine.drain()
    assert ask(None) == wanted(model, 12)


def test_a_name_puts_no_other_picture_under_the_content_that_it_had(
    model: Path, new_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = BaseMultiModalProcessor._cached_apply_hf_processor
    monkeypatch.setattr(BaseMultiModalProcessor, "_cached_apply_hf_processor", process)
    note_named_items(BaseMultiModalProcessor)
    first, second = new_engine(has_named=True), new_engine(has_named=True)
    first.send([picture(21)], ["cat"])
    first.receive()
    first.drain()
    with Client(first.client.run_dir) as client:
        client.delete(*client.keys("processed-item/*"))
    second.send([picture(22)], ["cat"])
    assert [digest(each) for each in second.receive()] == wanted(model, 22)
    second.drain()
    assert run(second, 21) == wanted(model, 21)


def test_a_name_that_vllms_cache_has_with_former_content(
    model: Path, service: ChildService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache of whole items cannot drop an item; the store keeps none of these."""
    process = BaseMultiModalProcessor._cached_apply_hf_processor
    monkeypatch.setattr(BaseMultiModalProcessor, "_cached_apply_hf_processor", process)
    note_named_items(BaseMultiModalProcessor)
    monkeypatch.setattr(item_saver, "MAX_UNSAVED_BYTES", item_saver._SMALL_BYTES)
    with Server(model, None) as server, Client(service.run_dir) as client:
        server.cache = MmcachedProcessorCache(server.config, Client(service.run_dir), has_named=True)
        for seed in (31, 32, 31):
            client.forget(f"vllm/{model}/cat")
            for _ in range(2):
                (found,) = server.render([picture(seed)], ["cat"])["mm_kwargs"]["image"]
                assert [digest(found)] == wanted(model, seed)
                assert server.cache.drain(DEADLINE_S)
