"""Render servers share what vLLM makes of pictures: processed once, equal bit for bit, counts without pixels."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
    MultiModalSharedField,
)
from vllm.multimodal.processing.processor import (
    PromptIndexTargets,
    PromptUpdateDetails,
    ResolvedPromptUpdate,
    UpdateMode,
)

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Claim, Client, Pending
from mmcached.integrations.processed_inputs import vllm_plugin
from mmcached.integrations.processed_inputs.items import NUM_QUICK, keys_of
from mmcached.integrations.processed_inputs.vllm_cache import MmcachedProcessorCache, PixelsNotKept
from mmcached.integrations.processed_inputs.vllm_items import (
    SMALL_BYTES,
    LazyItem,
    NotPlain,
    elements_of,
    to_processed,
    updates_of,
)
from tests.clock import Clock
from tests.hosts.vllm.processing import Server, digest, picture, summary

DEADLINE_S = 60.0
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]
HASH = "5" * 64


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def run_dir(store: ChildService, service_dir: Path) -> Path:
    return service_dir / "s"


@pytest.fixture
def new_server(model: Path) -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:
        yield lambda run_dir, **settings: stack.enter_context(Server(model, run_dir, **settings))


def elsewhere(model: Path, run_dir: Path, *words: str) -> dict[str, Any]:
    """Return what another process says of the same pictures."""
    run = [sys.executable, "-m", "tests.hosts.vllm.processing", str(model), str(run_dir), *words]
    said: dict[str, Any] = json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    return said


def test_a_second_process_runs_no_processor(model: Path, run_dir: Path) -> None:
    """With the bits, and the field configurations, of a server that has nothing of ours."""
    alone = Server(model, None)
    wanted = summary(alone, alone.render([picture(1), picture(2)]))
    first = elsewhere(model, run_dir, "1", "2")
    second = elsewhere(model, run_dir, "1", "2")
    assert (wanted.pop("num_runs"), first.pop("num_runs"), second.pop("num_runs")) == (1, 1, 0)
    assert (first.pop("were_loaded"), second.pop("were_loaded")) == ([], [False, False])
    del wanted["were_loaded"]
    assert wanted == first == second
    counts = elsewhere(model, run_dir, "1", "2", "--counts-only")
    assert (counts["num_runs"], counts["were_loaded"]) == (0, [False, False]), "nor read any pixels"
    assert [counts[name] for name in ("tokens", "placeholders", "grids")] == [
        wanted[name] for name in ("tokens", "placeholders", "grids")
    ]


def test_a_picture_among_new_ones_is_found(new_server: Callable[..., Server], run_dir: Path) -> None:
    first, second = new_server(run_dir), new_server(run_dir)
    (made,) = first.render([picture(11)])["mm_kwargs"]["image"]
    assert first.cache is not None
    assert first.cache.drain(DEADLINE_S)
    new, found = second.render([picture(12), picture(11)])["mm_kwargs"]["image"]
    assert isinstance(found, LazyItem)
    assert not isinstance(new, LazyItem)
    assert digest(found) == digest(made)
    assert found.is_loaded
    assert second.cache is not None
    assert second.cache.make_stats() == (1, 2)


def test_two_servers_process_a_new_picture_once(new_server: Callable[..., Server], run_dir: Path) -> None:
    first, second = new_server(run_dir), new_server(run_dir)
    has_begun, may_end = threading.Event(), threading.Event()

    def wait() -> None:
        has_begun.set()
        assert may_end.wait(DEADLINE_S)

    first.before_run = wait
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first.render, [picture(21)])
        assert has_begun.wait(DEADLINE_S)
        other = pool.submit(second.render, [picture(21)])
        may_end.set()
        items = [each.result(DEADLINE_S)["mm_kwargs"]["image"][0] for each in (one, other)]
    assert digest(items[0]) == digest(items[1])
    assert isinstance(items[1], LazyItem)


def test_a_server_that_normalises_elsewhere_has_its_own_items(
    new_server: Callable[..., Server], model: Path, run_dir: Path
) -> None:
    """The engine normalises pixels, or the processor does; a hit with the other pixels would not fail."""
    other = {"mm_device_do_normalize": False}
    wanted = [
        digest(Server(model, None, **each).render([picture(71)])["mm_kwargs"]["image"][0]) for each in ({}, other)
    ]
    assert wanted[0] != wanted[1]
    first = new_server(run_dir)
    first.render([picture(71)])
    assert first.cache is not None
    assert first.cache.drain(DEADLINE_S)
    (item,) = new_server(run_dir, **other).render([picture(71)])["mm_kwargs"]["image"]
    assert digest(item) == wanted[1]


def test_a_named_item_stays_where_it_is(new_server: Callable[..., Server], run_dir: Path) -> None:
    """What a client calls a picture says nothing to another process."""
    server = new_server(run_dir)
    cache = server.cache
    assert cache is not None
    assert cache.get_and_update_item((item(), []), "my-cat")[0] is not None
    assert cache.is_cached(["my-cat"]) == [True]
    with Client(run_dir) as client:
        assert MmcachedProcessorCache(server.config, client).is_cached(["my-cat"]) == [False]


def test_without_a_service_items_stay_in_the_process(model: Path, tmp_path: Path) -> None:
    with Client(tmp_path / "none", timeout_s=0.1, connect_timeout_s=0.1) as client:
        config = Server(model, None).config
        cache = MmcachedProcessorCache(config, client)
        assert cache.is_cached([HASH]) == [False]
        for drains in (False, True):
            cache.get_and_update_item((item(), []), HASH)
            cache.forget_request()
            assert not drains or cache.drain(DEADLINE_S)
            assert cache.is_cached([HASH]) == [True]
            assert cache.get_and_update_item(None, HASH)[0] == item()
        cache.close()


def test_counts_alone_are_never_taken_for_an_item(model: Path, run_dir: Path) -> None:
    with Client(run_dir) as client:
        cache = MmcachedProcessorCache(Server(model, None).config, client, counts_only=True)
        assert cache.is_cached(["6" * 64]) == [False]
        cache.get_and_update_item((item(), []), "6" * 64)
        assert cache.drain(DEADLINE_S)
        assert cache.is_cached(["6" * 64]) == [True]
        found, _ = cache.get_and_update_item(None, "6" * 64)
        assert found is not None
        assert torch.equal(found["grid"].data, item()["grid"].data)
        with pytest.raises(PixelsNotKept):
            dict(found)
        cache.close()


def test_items_that_are_made_quickly_are_not_claimed(model: Path, run_dir: Path) -> None:
    """A claim is a message, and whoever is told to wait for it waits longer than such an item takes."""
    clock = Clock()
    hashes = [f"{number:064x}" for number in range(1, NUM_QUICK + 3)]
    with Client(run_dir) as other:
        cache = MmcachedProcessorCache(Server(model, None).config, Client(run_dir), clock=clock)
        assert cache.is_cached(hashes[:1]) == [False]
        key = keys_of(cache._processor, hashes[0])[0]
        assert other.claim_many([key]) == [Pending(key)]
        for mm_hash in hashes[:NUM_QUICK]:
            cache.is_cached([mm_hash])
            clock.now += 0.001
            cache.get_and_update_item((item(), []), mm_hash)
            cache.release_sender_touches()
        assert cache.is_cached(hashes[-2:]) == [False, False]
        key = keys_of(cache._processor, hashes[-2])[0]
        (claim,) = other.claim_many([key])
        assert isinstance(claim, Claim)
        claim.drop()
        clock.now += 0.1
        cache.get_and_update_item((item(), []), hashes[-2])
        assert cache.drain(DEADLINE_S)
        cache.release_sender_touches()
        assert cache.is_cached(hashes[-2:]) == [True, False]
        key = keys_of(cache._processor, hashes[-1])[0]
        assert other.claim_many([key]) == [Pending(key)]
        cache.close()


def test_the_plug_in_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.renderers import base

    monkeypatch.delenv(vllm_plugin.RUN_DIR, raising=False)
    before = base.processor_only_cache_from_config
    vllm_plugin.register()
    assert base.processor_only_cache_from_config is before


# ---- items


def item() -> MultiModalKwargsItem:
    flat = MultiModalFlatField(slices=[slice(0, 2), slice(2, 4)], dim=0)
    return MultiModalKwargsItem(
        {
            "pixel_values": MultiModalFieldElem(torch.arange(2 * SMALL_BYTES, dtype=torch.float32), flat),
            "grid": MultiModalFieldElem(torch.tensor([1, 2, 3]), MultiModalBatchedField(keep_on_cpu=True)),
            "ids": MultiModalFieldElem([torch.tensor(1), 2.5], MultiModalSharedField(batch_size=3)),
            "nested": MultiModalFieldElem(torch.ones(2), MultiModalFlatField(slices=[[slice(0, 1), slice(None)]])),
        }
    )


def update(content: PromptUpdateDetails, target: Any = None) -> ResolvedPromptUpdate:
    return ResolvedPromptUpdate("image", 1, UpdateMode.REPLACE, [7] if target is None else target, content)


def test_an_item_comes_back_with_its_field_configurations() -> None:
    processed = to_processed(item(), [])
    assert set(processed.pixels) == {"pixel_values"}
    back = elements_of(processed.counts["fields"]) | elements_of(processed.pixels)
    assert {name: each.field for name, each in back.items()} == {name: each.field for name, each in item().items()}
    assert MultiModalKwargsItem(back) == item()


@pytest.mark.parametrize("chosen", [[5], [5, 6], []])
def test_a_prompt_update_comes_back_with_its_placeholders(chosen: list[int]) -> None:
    before = update(PromptUpdateDetails.select_token_ids([4, 5, 5, 6], chosen))
    (after,) = updates_of(to_processed(item(), [before]).counts)
    assert (after.modality, after.item_idx, after.mode, after.target) == ("image", 1, UpdateMode.REPLACE, [7])
    assert after.content.full == [4, 5, 5, 6]
    assert before.content.is_embed is not None
    assert after.content.is_embed is not None
    for tokens in ([4, 5, 5, 6], [6, 4]):
        assert torch.equal(before.content.is_embed(tokens), after.content.is_embed(tokens))


def test_a_prompt_update_without_a_choice_stays_one() -> None:
    (after,) = updates_of(to_processed(item(), [update(PromptUpdateDetails([1, 2]))]).counts)
    assert after.content.is_embed is None


@pytest.mark.parametrize(
    "wrong",
    [
        update(PromptUpdateDetails([1]), PromptIndexTargets.start()),
        update(PromptUpdateDetails([5, 5], lambda full: torch.tensor([True, False]))),
    ],
    ids=["a function as target", "a token that is one and is none"],
)
def test_what_cannot_be_said_in_plain_values_is_not_shared(wrong: ResolvedPromptUpdate) -> None:
    with pytest.raises(NotPlain):
        to_processed(item(), [wrong])
