"""Engines share what is the same, nothing under names that say nothing; what an output depends on is in the key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmcached.cache.output_names import ROWS
from mmcached.client import Client
from mmcached.integrations.vllm.keys import KeyNamespace, Sharing, rows_of_engine
from mmcached.integrations.vllm.settings import ConnectorSettings
from tests.integrations.vllm.steps import Feature, Place, item

H100 = {"type": "cuda", "name": "NVIDIA H100 80GB HBM3", "capability": "9.0"}
A100 = {"type": "cuda", "name": "NVIDIA A100-SXM4-80GB", "capability": "8.0"}
TOWER: dict[str, Any] = {
    "tower": "a digest",
    "words": "another digest",
    "is_image_wordless": True,
    "device": H100,
    "libraries": {"torch": {"torch": "2.14.0"}, "packages": {"transformers": "5.23.0"}},
    "variables": {},
    "precision": {"deterministic": False},
}

COMPILED = {"compilation_config": SimpleNamespace(compile_mm_encoder=True)}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with Client(tmp_path / "nobody", timeout_s=0.1, connect_timeout_s=0.1) as client:
        yield client


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def engine(checkpoint: Path, **changes: Any) -> SimpleNamespace:
    """Return a vLLM configuration as far as keys look into it."""
    vision = {"depth": 2, 7: object, "text_config": {"vocab_size": changes.pop("vocab_size", 1)}}
    model = {
        "model": str(checkpoint),
        "revision": None,
        "dtype": "torch.bfloat16",
        "quantization": None,
        "hf_config": SimpleNamespace(to_dict=lambda: vision | changes.pop("vision", {})),
        "multimodal_config": SimpleNamespace(**{"mm_processor_kwargs": None, **changes.pop("encoder", {})}),
        "is_encoder_decoder": changes.pop("is_encoder_decoder", False),
    }
    load = SimpleNamespace(download_dir=None)
    others = {name: changes.pop(name, None) for name in ("lora_config", "compilation_config", "parallel_config")}
    return SimpleNamespace(model_config=SimpleNamespace(**model | changes), load_config=load, **others)


def namespace_of(config: Any, client: Client, tower: Callable[[], Any], **settings: Any) -> KeyNamespace:
    namespace = KeyNamespace(config, ConnectorSettings(**settings), "0.33.0", tower)
    assert not namespace.prefix("image")
    namespace.prepare(client)
    return namespace


def prefix(config: Any, client: Client, tower: Mapping[str, Any] = TOWER, **settings: Any) -> str:
    return namespace_of(config, client, lambda: tower, **settings).prefix("image")


def test_equal_engines_share(checkpoint: Path, client: Client, tmp_path: Path) -> None:
    usual = prefix(engine(checkpoint), client)
    assert usual.startswith("encoder/")
    assert usual.endswith("/")
    checkpoint.rename(tmp_path / "moved")
    assert prefix(engine(tmp_path / "moved"), client) == usual
    assert prefix(engine(tmp_path / "moved", vocab_size=2), client) == usual, "the language model does not matter"


@pytest.mark.parametrize(
    "changes",
    [
        {"revision": "v2"},
        {"dtype": "torch.float16"},
        {"quantization": "fp8"},
        {"vision": {"depth": 3}},
        {"encoder": {"mm_processor_kwargs": {"max_pixels": 1}}},
        {"encoder": {"mm_encoder_attn_dtype": "fp8"}},
        {"encoder": {"mm_encoder_tp_mode": "data"}},
        {"encoder": {"mm_device_do_normalize": False}},
        {"encoder": {"a_setting_of_a_later_vllm": 1}},
        {"compilation_config": SimpleNamespace(compile_mm_encoder=True, inductor_compile_config={"dce": True})},
        {"compilation_config": SimpleNamespace(custom_ops=["all"])},
        {"parallel_config": SimpleNamespace(tensor_parallel_size=2)},
    ],
    ids=str,
)
def test_what_an_output_depends_on_is_in_the_key(checkpoint: Path, client: Client, changes: dict[str, Any]) -> None:
    assert prefix(engine(checkpoint, **changes), client) != prefix(engine(checkpoint), client)


def test_what_differs_between_an_encoder_server_and_its_consumers_is_not(checkpoint: Path, client: Client) -> None:
    encoder = {"mm_encoder_only": True, "mm_processor_cache_gb": 0, "limit_per_prompt": {"image": 1}}
    assert prefix(engine(checkpoint, encoder=encoder), client) == prefix(engine(checkpoint), client)


@pytest.mark.parametrize(
    "changed",
    [
        {"tower": "other weights"},
        {"tower": ["of rank 0", "of rank 1"]},
        {"device": A100},
        {"device": H100 | {"multi_processor_count": 16}},
        {"libraries": {"torch": {"torch": "2.14.0"}, "packages": {"transformers": "5.24.0"}}},
        {"variables": {"VLLM_BATCH_INVARIANT": "1"}},
        {"precision": {"deterministic": True}},
    ],
    ids=str,
)
def test_what_the_workers_say_of_the_tower_is_in_the_key(
    checkpoint: Path, client: Client, changed: dict[str, Any]
) -> None:
    assert prefix(engine(checkpoint), client, TOWER | changed) != prefix(engine(checkpoint), client)


@pytest.mark.parametrize("encoder", ["", "named"])
def test_word_embeddings_count_where_an_item_has_some(checkpoint: Path, client: Client, encoder: str) -> None:
    other = TOWER | {"words": "other words"}
    towers = [TOWER, other, TOWER | {"is_image_wordless": False}, other | {"is_image_wordless": False}]
    seen = [TOWER]
    namespace = namespace_of(engine(checkpoint), client, lambda: seen[-1], encoder=encoder)
    found = []
    for tower in towers:
        seen.append(tower)
        names = [namespace.prefix(modality) for modality in ("image", "video", "")]
        found.append([name.split("/")[1] for name in names])
        assert names[0].endswith("/" if encoder else "/image/")
    assert all(video == each for _, video, each in found)
    assert found[0][1] != found[1][1]
    assert found[2][0] != found[3][0]
    if not encoder:
        assert found[0][0] == found[1][0] != found[0][1]


@pytest.mark.parametrize(
    ("value", "device", "changes", "batching"),
    [
        ("1", H100, {}, "invariant"),
        ("1", [H100, A100], {}, "invariant"),
        ("0", H100, {}, "any"),
        ("", H100, {}, "any"),
        ("1", {"type": "cpu"}, {}, "any"),
        ("1", [H100, {"type": "cpu"}], {}, "any"),
        ("1", H100, COMPILED, "any"),
    ],
)
def test_only_a_batch_invariant_tower_is_exact(value: str, device: Any, changes: dict[str, Any], batching: str) -> None:
    tower = TOWER | {"device": device, "variables": {"VLLM_BATCH_INVARIANT": value}}
    files = {"checkpoint": "", "scales": ""}
    rows = rows_of_engine(engine(Path(), **changes), ConnectorSettings(), "0.33.0", tower, files)
    assert rows["batching"] == batching
    assert rows.keys() == ROWS.keys()


def test_who_wants_exact_hits_shares_nothing_else(
    checkpoint: Path, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    invariant = TOWER | {"variables": {"VLLM_BATCH_INVARIANT": "1"}}
    for tower, is_exact in ((TOWER, False), (invariant, True)):
        usual = namespace_of(engine(checkpoint), client, partial(dict, tower))
        exact = namespace_of(engine(checkpoint), client, partial(dict, tower), only_exact=True)
        assert exact.prefix("image") == (usual.prefix("image") if is_exact else "")
        assert usual.is_exact is is_exact
    assert "not batch-invariant" in caplog.text


def test_the_scales_of_an_fp8_tower_are_in_the_key_by_their_content(checkpoint: Path, client: Client) -> None:
    scales = checkpoint.parent / "scales.json"
    of_fp8 = {"mm_encoder_attn_dtype": "fp8", "mm_encoder_fp8_scale_path": str(scales)}
    scales.write_text("1")
    usual = prefix(engine(checkpoint, encoder=of_fp8), client)
    moved = scales.rename(checkpoint.parent / "moved.json")
    assert prefix(engine(checkpoint, encoder=of_fp8 | {"mm_encoder_fp8_scale_path": str(moved)}), client) == usual
    scales.write_text("2")
    assert prefix(engine(checkpoint, encoder=of_fp8), client) != usual


def test_versions_and_files_are_in_the_key(checkpoint: Path, client: Client) -> None:
    usual = prefix(engine(checkpoint), client)
    other = KeyNamespace(engine(checkpoint), ConnectorSettings(), "0.34.0", lambda: TOWER)
    other.prepare(client)
    assert other.prefix("image") != usual
    assert prefix(engine(checkpoint), client, weights_version="step 7") != usual
    (checkpoint / "model.safetensors").write_text("the workers say what the weights are")
    assert prefix(engine(checkpoint), client) == usual
    (checkpoint / "preprocessor_config.json").write_text("{}")
    assert prefix(engine(checkpoint), client) != usual


@pytest.mark.parametrize("encoder", ["", "named"])
def test_engines_share_by_the_weights_that_they_have(checkpoint: Path, client: Client, encoder: str) -> None:
    towers: list[Any] = [TOWER, TOWER]
    engines = [
        namespace_of(engine(checkpoint), client, partial(towers.__getitem__, at), encoder=encoder) for at in (0, 1)
    ]

    def found() -> list[str]:
        return [each.prefix("image") for each in engines]

    first, same = found()
    assert first == same
    towers[0] = TOWER | {"tower": "trained"}
    trained, other = found()
    assert (trained == first, other) == (False, first)
    towers[1] = TOWER | {"tower": "trained"}
    # A name that an operator has given says nothing of trained weights: only the engine itself knows them.
    assert (found()[1] == trained) is not bool(encoder)
    towers[:] = [None, dict(TOWER)]
    assert found() == ["", first]


def test_a_checkpoint_elsewhere_needs_a_name(client: Client, tmp_path: Path) -> None:
    assert prefix(engine(tmp_path / "nowhere"), client, checkpoint="s3://models/cat@7").startswith("encoder/")


def feature(name: str, **changes: Any) -> Feature:
    return Feature(name, Place(0, 1), **changes)


@pytest.mark.parametrize("name", [item(1), "ab" * 64])
def test_what_is_named_by_its_content_is_shared(name: str) -> None:
    assert Sharing(is_possible=True, has_named=False).may_share(feature(name, mm_hash=name))


@pytest.mark.parametrize(
    "name", ["renderer0-mm-3-image-0", "0-image-0", "7-video-12", "x" * 129, f"adapter:{item(1)}"[:200] + "x" * 80]
)
def test_what_says_nothing_of_its_content_never_is(name: str) -> None:
    assert not Sharing(is_possible=True, has_named=True).may_share(feature(name))


def test_a_clients_names_are_shared_if_the_user_says_so() -> None:
    assert not Sharing(is_possible=True, has_named=False).may_share(feature("cat"))
    assert Sharing(is_possible=True, has_named=True).may_share(feature("cat"))


def test_a_name_for_dynamos_router_is_one_that_a_client_gives() -> None:
    """Dynamo keeps 16 digits of a hash, of content or of an address, and fills up with zeros."""
    name = item(1)[-16:] + "0" * 48
    assert not Sharing(is_possible=True, has_named=False).may_share(feature(name, mm_hash=name))
    assert Sharing(is_possible=True, has_named=True).may_share(feature(name, mm_hash=name))


def test_an_adapter_on_the_tower_or_a_pass_through_is_not_shared(checkpoint: Path) -> None:
    sharing = Sharing(is_possible=True, has_named=True)
    assert not sharing.may_share(feature(f"lora:{item(1)}", mm_hash=item(1)))
    assert not sharing.may_share(feature(item(1), modality="prompt_embeds"))
    tower = SimpleNamespace(enable_tower_connector_lora=True)
    for changes in ({"lora_config": tower}, {"is_encoder_decoder": True}):
        assert not Sharing.of(engine(checkpoint, **changes), ConnectorSettings()).may_share(feature(item(1)))
    assert Sharing.of(engine(checkpoint), ConnectorSettings()).may_share(feature(item(1)))
