"""A server with one API process sends handles to its engine, which opens them in shared memory: real parts of vLLM."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from vllm.multimodal.cache.base import MultiModalCacheMissError
from vllm.multimodal.inputs import MultiModalKwargsItem
from vllm.multimodal.processing import BaseMultiModalProcessor

from mmcached.cli.serve.child_service import ChildService
from mmcached.integrations.processed_inputs import vllm_handles
from mmcached.integrations.processed_inputs.vllm_handles import HANDLE, LentPixels
from mmcached.integrations.processed_inputs.vllm_items import LazyItem
from mmcached.integrations.processed_inputs.vllm_named import note_named_items
from tests.hosts.vllm.engine_ends import Engine
from tests.hosts.vllm.processing import Server, digest, picture
from tests.hosts.vllm.sharing import store_config
from tests.integration.processes import eventually

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("qwen2_5_vl")


@pytest.fixture
def run_dir(store: ChildService, service_dir: Path) -> Path:
    return service_dir / "s"


@pytest.fixture
def engines(model: Path, run_dir: Path) -> Iterator[list[Engine]]:
    with Engine(model, run_dir) as first, Engine(model, run_dir) as second:
        yield [first, second]


def wanted(model: Path, seeds: list[int]) -> list[str]:
    """Return the digests of what vLLM makes of pictures without mmcached."""
    rendered = Server(model, None).render([picture(seed) for seed in seeds])
    return [digest(item) for item in rendered["mm_kwargs"]["image"]]


def test_a_second_server_runs_no_processor_and_sends_no_pixels(model: Path, engines: list[Engine]) -> None:
    first, second = engines
    made = first.run(31, 32)
    found = second.run(31, 32)
    assert (first.sender.num_processed, second.sender.num_processed) == (2, 0)
    assert second.num_sent_bytes < 4096
    assert all(isinstance(item, LazyItem) and not item.is_loaded for item in found)
    assert not any("address" in item for item in found)
    assert not any(item.is_loaded for item in found), "nothing was loaded to ask for a name"
    assert [digest(item) for item in found] == [digest(item) for item in made] == wanted(model, [31, 32])


def test_new_and_known_items_keep_their_order(model: Path, engines: list[Engine]) -> None:
    first, second = engines
    first.run(33)
    found = second.run(34, 33, 35)
    rendered = Server(model, None).render([picture(seed) for seed in (34, 33, 35)])
    for item, own in zip(found, rendered["mm_kwargs"]["image"], strict=True):
        assert set(item) == set(own)
        assert all(torch.equal(item[name].data, own[name].data) for name in own)


def test_an_item_is_pickled_whole(model: Path, engines: list[Engine]) -> None:
    engines[0].run(36)
    (item,) = engines[1].run(36)
    make, arguments = item.__reduce__()
    copy = make(*arguments)
    assert type(copy) is MultiModalKwargsItem
    assert digest(copy) == wanted(model, [36])[0]


def test_the_store_dies_between_look_up_and_use(model: Path, tmp_path: Path, service_dir: Path) -> None:
    run_dir = service_dir / "k"
    with ExitStack() as stack:
        service = stack.enter_context(ChildService(run_dir, store_config(), tmp_path / "config.json"))
        first, second, third = (stack.enter_context(Engine(model, run_dir)) for _ in range(3))
        first.run(41, 42)
        first.drain()
        second.send([picture(41), picture(42)])
        os.killpg(service.process.pid, signal.SIGKILL)
        service.process.wait()
        assert [digest(item) for item in second.receive()] == wanted(model, [41, 42])
        assert [digest(item) for item in second.run(43)] == wanted(model, [43])
        stack.enter_context(ChildService(run_dir, store_config(), tmp_path / "again.json"))
        assert [digest(item) for item in third.run(41, 42)] == wanted(model, [41, 42])
        assert third.sender.num_processed == 0, "a restarted store has its records"


def test_a_handle_that_cannot_be_opened_is_sent_as_a_whole(
    model: Path, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine asks for the item again, as vLLM's own does, and has it as a whole."""
    first, second = engines
    first.run(51)
    second.send([picture(51)])
    with monkeypatch.context() as patch:
        patch.setattr(second.client, "open", lambda *_, **__: None)
        with pytest.raises(MultiModalCacheMissError) as caught:
            second.receive()
        for mm_hash in caught.value.mm_hashes:
            assert second.sender.is_cached_item(mm_hash)
            second.sender.invalidate(mm_hash)
        for _ in range(2):
            assert [digest(item) for item in second.run(51)] == wanted(model, [51])
    assert second.sender.num_processed == 0


def test_a_handle_of_a_request_is_refused(model: Path, engines: list[Engine]) -> None:
    first, second = engines
    first.run(61)
    (item,) = second.server.render([picture(61)])["mm_kwargs"]["image"]
    assert HANDLE in item
    with pytest.raises(ValueError, match=HANDLE):
        first.sender.validate_input_item(item, "6" * 64)


def test_without_a_service_items_take_vllms_own_way(model: Path, tmp_path: Path) -> None:
    with Engine(model, tmp_path / "none") as engine:
        for _ in range(2):
            assert [digest(item) for item in engine.run(71)] == wanted(model, [71])
        assert (engine.sender.num_processed, engine.num_sent_bytes < 4096) == (1, True)


def test_a_name_alone_finds_the_item(model: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound by the first server that processes it; another server, and a server without names, have the same record."""
    process = BaseMultiModalProcessor._cached_apply_hf_processor
    monkeypatch.setattr(BaseMultiModalProcessor, "_cached_apply_hf_processor", process)
    note_named_items(BaseMultiModalProcessor)
    with (
        Engine(model, run_dir, has_named=True) as first,
        Engine(model, run_dir, has_named=True) as second,
        Engine(model, run_dir) as other,
    ):
        with pytest.raises(ValueError, match="data is not provided"):
            second.send([None], ["cat"])
        first.send([picture(91), picture(92)], ["cat", None])
        made = [digest(item) for item in first.receive()]
        assert made == wanted(model, [91, 92])
        first.drain()
        second.send([None, picture(92)], ["cat", None])
        assert [digest(item) for item in second.receive()] == made
        assert second.sender.num_processed == 0
        assert [digest(item) for item in other.run(91, 92)] == made
        assert other.sender.num_processed == 0
        other.send([picture(93)], ["dog"])
        assert other.sender.num_not_shared == 1, "names are not shared unless that is asked for"
        other.send([picture(93)], ["7" * 64])
        assert other.sender.num_not_shared == 2, "whatever they look like"
        second.send([picture(91)], ["the same cat"])
        second.send([None], ["the same cat"])
        assert second.sender.num_processed == 0
        second.drain()
        name = f"vllm/{model}/cat"
        assert first.client.resolve(name) is not None
        first.client.forget(name)
        with pytest.raises(ValueError, match="data is not provided"):
            second.send([None], ["cat"])


def test_leases_end(engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """After `LENT_S`; with many bytes, after `LEAST_LENT_S`."""
    now = [0.0]
    lent = LentPixels(lambda: now[0])
    first, second = engines
    first.run(81)
    (item,) = second.server.render([picture(81)])["mm_kwargs"]["image"]
    hit = first.client.open(bytes(item[HANDLE].data).decode(), view=True)
    assert hit is not None
    for name in "ab":
        assert lent.lend(name, {}, hit) is not None
    now[0] = vllm_handles.LEAST_LENT_S + 0.1
    lent.end_old()
    assert "a" in lent
    monkeypatch.setattr(vllm_handles, "MAX_LENT_BYTES", 1)
    lent.lend("c", {}, hit)
    lent.end_old()
    assert ["a" in lent, "b" in lent, "c" in lent] == [False, False, True]
    now[0] += vllm_handles.LENT_S
    lent.end_old()
    assert "c" not in lent
    lent.end_all()


def test_an_idle_server_keeps_no_lease(engines: list[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_handles, "LENT_S", 0.01)
    monkeypatch.setattr(vllm_handles, "LEAST_LENT_S", 0.0)
    first, second = engines
    first.run(82)
    first.drain()
    rendered = second.server.render([picture(82)])
    assert HANDLE in rendered["mm_kwargs"]["image"][0]
    (mm_hash,) = rendered["mm_hashes"]["image"]
    eventually(lambda: second.sender.is_cached_item(mm_hash), lambda is_lent: not is_lent, "the lease ends")
