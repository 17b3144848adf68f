"""What vLLM hashes of a name, with a request's arguments, is not shared: it may be of other content elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import ModelConfig
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import ProcessorInputs, processor

from mmcached.cli.serve.child_service import ChildService
from mmcached.integrations.vllm.keys import Sharing, is_content_hash
from mmcached.integrations.vllm.named_hashes import mark_hashed_names
from tests.hosts.prompts import image, text
from tests.hosts.vllm.conftest import MakeCheckpoint
from tests.hosts.vllm.engines import EngineProcess, joined
from tests.hosts.vllm.processing import picture

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]
OF_CONTENT, OF_ROUTER, OF_CLIENT, NUMBER = "7" * 64, f"{'7' * 16:0<64}", "my-cat", "renderer0-mm-1-image-0"
ARGUMENTS = {"max_pixels": 12544}


@pytest.fixture
def new_processor(checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    base = processor.BaseMultiModalProcessor
    monkeypatch.setattr(base, "__init__", base.__init__)
    mark_hashed_names(processor)
    mark_hashed_names(processor)
    config = ModelConfig(str(checkpoint("qwen2_5_vl")), dtype="float32", max_model_len=2048)
    return lambda: MULTIMODAL_REGISTRY.create_processor(config)


def hash_of(made_by: Any, name: str | None, arguments: Mapping[str, Any]) -> str:
    items = made_by.info.parse_mm_data({"image": [picture(1)]})
    inputs = ProcessorInputs([], items, {"image": [name]}, hf_processor_mm_kwargs=arguments)
    (mm_hash,) = made_by._get_mm_hashes(inputs)["image"]
    return str(mm_hash)


def may_share(mm_hash: str, *, has_named: bool = False) -> bool:
    item = SimpleNamespace(identifier=mm_hash, mm_hash=mm_hash, modality="image")
    return Sharing(is_possible=True, has_named=has_named).may_share(item)


@pytest.mark.parametrize("arguments", [{}, ARGUMENTS], ids=["plain", "with arguments"])
def test_what_is_shared(new_processor: Callable[[], Any], arguments: dict[str, Any]) -> None:
    made_by = new_processor()
    hashes = {name: hash_of(made_by, name, arguments) for name in (None, OF_CONTENT, OF_ROUTER, OF_CLIENT, NUMBER)}
    assert [may_share(each) for each in hashes.values()] == [True, True, False, False, False]
    assert [may_share(each, has_named=True) for each in hashes.values()] == [True, True, True, True, False]
    assert len(set(hashes.values())) == len(hashes)


def test_a_name_with_arguments_has_one_hash_in_all_processes(new_processor: Callable[[], Any]) -> None:
    first, second = new_processor(), new_processor()
    found = hash_of(first, OF_CLIENT, ARGUMENTS)
    assert found == hash_of(second, OF_CLIENT, ARGUMENTS) != hash_of(second, OF_CLIENT, {"max_pixels": 25088})
    assert not is_content_hash(found)


def test_items_that_vllm_numbers_are_encoded_by_each_engine(
    checkpoint: MakeCheckpoint, store: ChildService, tmp_path: Path
) -> None:
    """Without caches it numbers them; the first pictures of two engines have the same number."""
    options = {"mm_processor_cache_gb": 0, "enable_prefix_caching": False}
    bits = []
    for seed in (1, 2):
        log = tmp_path / f"{seed}.log"
        with EngineProcess(checkpoint("qwen2_5_vl"), log, joined(store.run_dir) | options) as engine:
            asked = [[image(seed, side=112), text("What?")]]
            found = engine.do("ask", messages=asked, mm_processor_kwargs=ARGUMENTS)
            assert found["encoded"], "it has the other engine's picture"
            bits += found["bits"].values()
    assert len(set(bits)) == 2
