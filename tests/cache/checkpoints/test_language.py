"""What a checkpoint's small files say of its language model, and what is refused before anything is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmcached.cache.checkpoints import language
from mmcached.cache.checkpoints.language import VISION_MODELS, Language, check_model
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import END_TOKEN_ID, TOKEN_IDS, VOCABULARY_SIZE
from tests.cache.checkpoints.folders import GEMMA, LLAMA, config_of, model_config_of, write


def refused(folder: Path, **settings: Any) -> tuple[str, str]:
    """Return the field and the text of the error."""
    with pytest.raises(ConfigError) as caught:
        check_model(model_config_of(folder, **settings))
    return str(caught.value.details["field"]), str(caught.value)


@pytest.fixture(autouse=True)
def are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "find_spec", lambda name: object())


def test_the_reference_model_is_described_by_the_configuration() -> None:
    config = ServiceConfig(model=ModelConfig(hidden_size=32, num_layer_outputs=1))
    found = Language.of(config)
    assert (found.vocabulary_size, found.stop_token_ids) == (VOCABULARY_SIZE, frozenset({END_TOKEN_ID}))
    assert (found.marks, found.chunk_tokens, found.hidden_size, found.dtype) == (TOKEN_IDS, 0, 32, "int32")
    assert found.row_keys == ("hidden_states", "hidden_states.layer_0")
    assert found.prefix_blocks(config) == (1 << 28) // (16 * 2 * 32 * 4)
    check_model(config)


def test_a_checkpoint_is_described_by_its_files(tmp_path: Path) -> None:
    config = model_config_of(write(tmp_path, LLAMA))
    check_model(config)
    found = Language.of(config)
    assert (found.vocabulary_size, found.hidden_size, found.num_layers) == (512, 64, 3)
    assert (found.dtype, found.stop_token_ids, found.max_positions) == ("bfloat16", frozenset({2}), 8192)
    assert (found.marks, found.chunk_tokens, found.row_keys) == ({}, 128, ("hidden_states",))
    assert found.prefix_blocks(config) == (1 << 28) // (16 * 64 * 2)


def test_generation_settings_come_before_the_models(tmp_path: Path) -> None:
    folder = write(tmp_path, LLAMA)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert Language.of(model_config_of(folder)).stop_token_ids == {7, 8}
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True}))
    assert Language.of(model_config_of(folder)).stop_token_ids == {2}


def test_a_dtype_can_be_chosen(tmp_path: Path) -> None:
    folder = write(tmp_path, {**LLAMA, "dtype": "float64"})
    assert refused(folder)[0] == "model.path"
    assert Language.of(model_config_of(folder, dtype="fp32")).dtype == "float32"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "one of LlamaForCausalLM"),
        ({"architectures": None}, "no architecture"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "code of its own"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"vocab_size": None}, "vocab_size is None"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers is '3'"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    field, text = refused(write(tmp_path, {**LLAMA, **changes}))
    assert field == "model.path"
    assert reason in text


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    folder = write(tmp_path, LLAMA)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "safetensors" in refused(folder)[1]


def test_limits_of_the_model_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path, {**LLAMA, "max_position_embeddings": 4096})
    field, text = refused(folder)
    assert field == "max_model_len"
    assert "8192" in text
    assert "at most 4096" in text
    folder = write(tmp_path, LLAMA)
    assert refused(folder, num_layer_outputs=4)[0] == "model.num_layer_outputs"
    with pytest.raises(ConfigError) as caught:
        check_model(ServiceConfig(model=ModelConfig(kind="hf")))
    assert caught.value.details["field"] == "model.path"
    monkeypatch.setattr(language, "find_spec", lambda name: None)
    assert refused(folder)[0] == "model.kind"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"world_size": 0}, "model.kind"),
        ({"block_size": 48, "num_kv_blocks": 400}, "model.chunk_tokens"),
        ({"max_num_batched_tokens": 64}, "model.chunk_tokens"),
        ({"long_prefill_token_threshold": 127}, "long_prefill_token_threshold"),
        ({"disable_chunked_mm_input": True}, "disable_chunked_mm_input"),
    ],
)
def test_settings_under_which_no_chunk_is_computed_whole_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServiceConfig(model=ModelConfig(kind="hf", path="x"), **settings)
    assert caught.value.details["field"] == field


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "long_prefill_token_threshold"])
def test_a_step_has_room_for_a_chunk_with_a_whole_picture(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path, GEMMA)
    model = ModelConfig(kind="hf", path=str(folder))
    check_model(config_of(folder, model=model, **{name: 128 + 100}))
    with pytest.raises(ConfigError, match="at least 228") as caught:
        check_model(config_of(folder, model=model, **{name: 200}))
    assert caught.value.details["field"] == name
    assert [Language.of(config_of(folder, model=model)).num_bound(offset) for offset in (0, 127, 128, 300)] == [
        0,
        127,
        0,
        44,
    ]


@pytest.mark.parametrize("name", VISION_MODELS)
def test_the_placeholder_of_a_picture_is_in_the_configuration_or_the_classs_own(tmp_path: Path, name: str) -> None:
    def marks(**settings: Any) -> Any:
        folder = write(tmp_path, {**LLAMA, "architectures": [name], **settings})
        return Language.of(config_of(folder, model=ModelConfig(kind="hf", path=str(folder)))).marks

    (tmp_path / "tokenizer.json").write_text("{}")
    assert marks() == {"image": VISION_MODELS[name]}
    assert marks(image_token_index=8) == {"image": 8}
    assert marks(image_token_id=7) == {"image": 7}
    with pytest.raises(ConfigError, match="image_token_id is None"):
        marks(image_token_id=None)


def test_a_model_with_text_between_tiles_needs_its_tokenizer(tmp_path: Path) -> None:
    folder = write(tmp_path, {**LLAMA, "architectures": ["SmolVLMForConditionalGeneration"]})
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        check_model(config_of(folder, model=ModelConfig(kind="hf", path=str(folder))))
    assert refused(folder, num_layer_outputs=9)[0] == "model.num_layer_outputs"  # without an encoder it needs none


def test_in_the_mode_packed_chunks_begin_anywhere(tmp_path: Path) -> None:
    model = ModelConfig(kind="hf", path=str(write(tmp_path, LLAMA)), mode="packed")
    config = ServiceConfig(model=model, max_num_batched_tokens=64, disable_chunked_mm_input=True, max_model_len=2048)
    assert Language.of(config).chunk_tokens == 0


def test_a_model_whose_pictures_attend_both_ways_is_aligned(tmp_path: Path) -> None:
    folder = write(tmp_path, GEMMA)
    with pytest.raises(ConfigError, match="must be aligned") as caught:
        check_model(config_of(folder, model=ModelConfig(kind="hf", path=str(folder), mode="packed")))
    assert caught.value.details["field"] == "model.mode"


def with_weights(folder: Path, *files: dict[str, list[int]]) -> Path:
    """Write heads of safetensors files, by name and shape of each tensor, without the weights."""
    for index, shapes in enumerate(files):
        head = {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
        data = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
        (folder / f"model-{index}.safetensors").write_bytes(len(data).to_bytes(8, "little") + data)
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("prefix", ["model.", "language_model.model.", "model.language_model.", "model.text_model."])
def test_named_modules_have_the_widths_of_their_weights(tmp_path: Path, prefix: str) -> None:
    layer = {
        "self_attn.q_proj.weight": [128, 64],
        "self_attn.q_norm.weight": [16],
        "mlp.up_proj.weight": [96, 64],
        "mlp.up_proj.bias": [96],
        "input_layernorm.weight": [64],
    }
    folder = with_weights(
        write(tmp_path, LLAMA),
        {f"{prefix}layers.0.{name}": shape for name, shape in layer.items()},
        {f"{prefix}layers.1.mlp.up_proj.weight": [96, 64], "model.vision_tower.layers.2.mlp.up_proj.weight": [32, 32]},
    )
    names = "layers.0.mlp.up_proj, layers.1,layers.0.self_attn,layers.0.input_layernorm,layers.0.self_attn.q_proj"
    config = model_config_of(folder, num_layer_outputs=1, row_modules=names)
    check_model(config)
    assert Language.of(config).row_widths == {
        "hidden_states": 64,
        "hidden_states.layer_0": 64,
        "layers.0.mlp.up_proj": 96,
        "layers.1": 64,
        "layers.0.self_attn": 64,
        "layers.0.input_layernorm": 64,
        "layers.0.self_attn.q_proj": 128,
    }
    assert Language.of(config).row_keys == config.model.row_keys
    assert Language.of(config).prefix_blocks(config) == (1 << 28) // (16 * (5 * 64 + 96 + 128) * 2)
    for unknown in ("layers.2.mlp.up_proj", "layers.0.self_attn.q_norm", "embed_tokens", "model.layers.0"):
        field, text = refused(folder, row_modules=f"layers.0,{unknown}")
        assert field == "model.row_modules"
        assert unknown in text
        assert ".mlp.up_proj" in text


def test_named_modules_need_a_checkpoint_and_have_a_limit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="reference") as caught:
        check_model(ServiceConfig(model=ModelConfig(row_modules="layers.0.mlp")))
    assert caught.value.details["field"] == "model.row_modules"
    folder = write(tmp_path, {**LLAMA, "num_hidden_layers": 64})
    assert "not a file of safetensors" in refused(folder, row_modules="layers.0")[1]
    with_weights(folder, {f"model.layers.{layer}.mlp.up_proj.weight": [96, 64] for layer in range(64)})
    most = ",".join(f"layers.{layer}" for layer in range(63))
    check_model(model_config_of(folder, row_modules=most))
    assert refused(folder, row_modules=most, num_layer_outputs=1)[0] == "model.row_modules"
