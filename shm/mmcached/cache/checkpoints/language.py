"""Describes the model behind `generate`: vocabulary, ends of a generation, rows, and how prompts are cut into chunks.

    reference     constants of `wire.vocabulary`, sizes of the configuration
    checkpoint    config.json and generation_config.json of the folder

A checkpoint computes in floating point, so its results depend on the shapes in which they are computed. `chunk_tokens`
makes these shapes independent of what was cached: see `engine.scheduling.alignment`.

Imports neither torch nor Transformers: frontend and engine never load a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmcached.cache.checkpoints.architectures import IN_PROMPTS
from mmcached.cache.checkpoints.checkpoint import max_embeds_per_item
from mmcached.cache.checkpoints.json_files import json_of
from mmcached.cache.checkpoints.row_modules import row_widths
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.extras import how_to_install
from mmcached.wire.limits import check_range
from mmcached.wire.messages.parts import MAX_ROW_KEYS, TensorForm
from mmcached.wire.vocabulary import END_TOKEN_ID, TOKEN_IDS, VOCABULARY_SIZE, Modality

FIELD = "model.path"
ROW_MODULES = "model.row_modules"
TEXT_MODELS = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Gemma3ForCausalLM")
VISION_MODELS: Mapping[str, int] = {
    "LlavaForConditionalGeneration": 32_000,
    "Qwen2VLForConditionalGeneration": 151_655,
    "Qwen2_5_VLForConditionalGeneration": 151_655,
    "Qwen3VLForConditionalGeneration": 151_655,
    "Gemma3ForConditionalGeneration": 262_144,
    "SmolVLMForConditionalGeneration": 128_257,
    "Idefics3ForConditionalGeneration": 128_257,
    "InternVLForConditionalGeneration": 151_667,
    "LlavaNextForConditionalGeneration": 32_000,
}
"""Of the classes with a language model, those that are served; of those that take pictures, the placeholder's default.

A class is listed once it is tested.
"""
_QWEN2_VL = {
    "vocab_size": 152_064,
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "max_position_embeddings": 32_768,
}
_BOTH_WAYS = frozenset({"Gemma3ForConditionalGeneration"})
"""Classes in which the tokens of an item attend to each other both ways."""
_FRAMES = {"Gemma3ForConditionalGeneration": {"boi_token_index": 255_999, "eoi_token_index": 256_000}}
"""Classes whose processor puts tokens around a picture: their names in the configuration, and their defaults."""
_TEXT_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {
        "vocab_size": 32_000,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "max_position_embeddings": 2048,
    },
    "qwen2": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "max_position_embeddings": 32_768,
    },
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": {
        "vocab_size": 151_936,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "max_position_embeddings": 128_000,
    },
    "gemma3_text": {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "num_hidden_layers": 26,
        "max_position_embeddings": 131_072,
    },
}
"""Sizes that a configuration leaves out of its part for text; from the configuration classes of Transformers 5.23."""
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_ITEMSIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4}
_PACKAGES = ("transformers", "safetensors")


@dataclass(frozen=True, slots=True)
class Language:
    """The model behind `generate`, as frontend and engine know it.

    Attributes:
        vocabulary_size: Token ids are below it.
        stop_token_ids: Tokens that end a generation.
        marks: Placeholder token of the items of each modality that a prompt may have.
        hidden_size, dtype: Width and dtype of a row of hidden states.
        num_layers: Decoder layers.
        row_widths: Width of the rows of each tensor that has one per token, by name; the last layer's first.
        chunk_tokens: Chunks of a prompt begin at multiples of it, and only whole chunks are cached; 0: anywhere.
        max_positions: Most tokens of a sequence; None for no limit.
        frame: Tokens before and after a picture. In a text the first alone stands for a picture; None: its mark does.
        keeps_items_whole: The tokens of an item attend to each other both ways, so no chunk divides an item.
    """

    vocabulary_size: int
    stop_token_ids: frozenset[int]
    marks: Mapping[Modality, int]
    hidden_size: int
    dtype: str
    num_layers: int
    row_widths: Mapping[str, int]
    chunk_tokens: int = 0
    max_positions: int | None = None
    keeps_items_whole: bool = False
    frame: tuple[int, int] | None = None

    @classmethod
    def of(cls, config: ServiceConfig) -> Language:
        """Return the model of a service.

        Raises:
            ConfigError: The folder is not a checkpoint of a known architecture in safetensors, or needs code of its
                own, or lacks layers or modules whose rows are wanted.
        """
        if config.model.kind == "hf":
            return _of_checkpoint(config)
        model = config.model
        if model.row_modules:
            raise ConfigError(ROW_MODULES, model.row_modules, "must be empty: model.kind is reference")
        return cls(
            vocabulary_size=VOCABULARY_SIZE,
            stop_token_ids=frozenset({END_TOKEN_ID}),
            marks=TOKEN_IDS,
            hidden_size=model.hidden_size,
            dtype="int32",
            num_layers=model.num_layers,
            row_widths=dict.fromkeys(model.row_keys, model.hidden_size),
        )

    @property
    def row_keys(self) -> tuple[str, ...]:
        return tuple(self.row_widths)

    @property
    def row_forms(self) -> list[TensorForm]:
        """Names, dtypes and shapes of the tensors that have a row per token."""
        return [TensorForm(key, self.dtype, (-1, width)) for key, width in self.row_widths.items()]

    def num_bound(self, offset: int) -> int:
        """Return how many tokens before an item at `offset` are computed in chunks that end as the item demands."""
        return offset % self.chunk_tokens if self.keeps_items_whole else 0

    def prefix_blocks(self, config: ServiceConfig) -> int:
        """Return how many blocks of rows, all keys together, fit into `tensor_prefix_cache_bytes`."""
        token_bytes = sum(self.row_widths.values()) * _ITEMSIZES[self.dtype]
        return config.tensor_prefix_cache_bytes // (config.block_size * token_bytes)


def check_model(config: ServiceConfig) -> None:
    """Refuse a model that cannot be served, before a process is started.

    Raises:
        ConfigError: As `Language.of`; a package is not installed, or `max_model_len` exceeds the model's positions.
    """
    if config.model.kind == "reference":
        Language.of(config)
        return
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        reason = f"needs {' and '.join(missing)}, not installed: {how_to_install('hf')}"
        raise ConfigError("model.kind", "hf", reason)
    language = Language.of(config)
    if language.max_positions is not None and config.max_model_len > language.max_positions:
        limit = f"at most {language.max_positions}, the positions of the checkpoint ({FIELD})"
        raise ConfigError("max_model_len", config.max_model_len, limit)
    if language.keeps_items_whole and language.marks:
        if config.model.mode == "packed":
            limit = "must be aligned: tokens of a picture attend to each other both ways"
            raise ConfigError("model.mode", "packed", limit)
        most = language.chunk_tokens + max_embeds_per_item(config)
        for name in ("max_num_batched_tokens", "long_prefill_token_threshold"):
            if 0 < getattr(config, name) < most:
                limit = f"at least {most}: a step computes a chunk (model.chunk_tokens) and its last item whole"
                raise ConfigError(name, getattr(config, name), limit)


def architecture_of(path: Path) -> str:
    """Return the class of Transformers that wrote a folder; raises ConfigError as `Language.of`."""
    return _architecture(path, json_of(path / "config.json", FIELD))


def _of_checkpoint(config: ServiceConfig) -> Language:
    if not config.model.path:
        raise ConfigError(FIELD, "", "must be the folder of a checkpoint: model.kind is hf")
    path = Path(config.model.path)
    model = json_of(path / "config.json", FIELD)
    architecture = _architecture(path, model)
    text = _text_of(model)
    hidden_size, num_layers = _size(path, text, "hidden_size"), _size(path, text, "num_hidden_layers")
    num_wanted = config.model.num_layer_outputs
    check_range("model.num_layer_outputs", num_wanted, 0, min(num_layers, MAX_ROW_KEYS - 1))
    return Language(
        vocabulary_size=_size(path, text, "vocab_size"),
        stop_token_ids=_stop_token_ids(path, model, text),
        marks=_marks(config, path, architecture, model),
        hidden_size=hidden_size,
        dtype=_DTYPES.get(config.model.dtype) or _dtype_of(path, model, text),
        num_layers=num_layers,
        row_widths={"hidden_states": hidden_size} | _module_widths(config, path, hidden_size, num_layers),
        chunk_tokens=config.model.chunk_tokens if config.model.mode == "aligned" else 0,
        max_positions=_size(path, text, "max_position_embeddings"),
        keeps_items_whole=architecture in _BOTH_WAYS,
        frame=_frame(architecture, model),
    )


def _module_widths(config: ServiceConfig, path: Path, hidden_size: int, num_layers: int) -> dict[str, int]:
    """Return the widths of the rows that are returned beside the last layer's, by name."""
    modules = config.model.modules_by_key
    if not config.model.row_modules:
        return dict.fromkeys(modules, hidden_size)
    widths = row_widths(path, hidden_size, field=FIELD)
    for name in modules.values():
        if name not in widths:
            parts = sorted({known.partition(".")[2].partition(".")[2] for known in widths} - {""})
            limit = f"names of modules with a row per token: layers.0 to layers.{num_layers - 1}, or after that one of "
            limit += ", ".join(f".{part}" for part in parts)
            raise ConfigError(ROW_MODULES, name[:80], limit)
    check_range(ROW_MODULES, len(modules), 0, MAX_ROW_KEYS - 1)
    return {key: widths[name] for key, name in modules.items()}


def _architecture(path: Path, model: Mapping[str, Any]) -> str:
    names = model.get("architectures") or [""]
    if model.get("auto_map"):
        raise ConfigError(FIELD, str(path), "has code of its own (auto_map), which is never run")
    if model.get("quantization_config"):
        raise ConfigError(FIELD, str(path), "is quantized (quantization_config): only plain weights are served")
    known = (*TEXT_MODELS, *VISION_MODELS)
    if names[0] not in known:
        raise ConfigError(FIELD, f"{path}: {names[0] or 'no architecture'}", f"one of {', '.join(known)}")
    if not any(path.glob("*.safetensors")):
        raise ConfigError(FIELD, str(path), "has no *.safetensors: other formats of weights are not read")
    return str(names[0])


def _text_of(model: Mapping[str, Any]) -> Mapping[str, Any]:
    text = model.get("text_config")
    return model if text is None else {**_TEXT_DEFAULTS.get(text.get("model_type", "llama"), {}), **text}


def _marks(config: ServiceConfig, path: Path, architecture: str, model: Mapping[str, Any]) -> dict[Modality, int]:
    """Return the placeholder tokens of items that the checkpoint's own towers encode; none without towers."""
    if architecture not in VISION_MODELS or config.encoder.kind != "hf":
        return {}
    if Path(config.encoder.path).resolve() != path.resolve():
        limit = f"must be {FIELD} ({path}): items in prompts are encoded by the model's own towers"
        raise ConfigError("encoder.path", config.encoder.path, limit)
    if architecture in IN_PROMPTS and not (path / "tokenizer.json").exists():
        raise ConfigError(FIELD, str(path), "has no tokenizer.json: pictures in prompts have text between their tiles")
    token_id = model.get("image_token_id", model.get("image_token_index", VISION_MODELS[architecture]))
    if type(token_id) is not int:
        raise ConfigError(FIELD, f"{path}: image_token_id is {token_id!r}"[:200], "a token id in config.json")
    return {"image": token_id}


def _frame(architecture: str, model: Mapping[str, Any]) -> tuple[int, int] | None:
    names = _FRAMES.get(architecture)
    if names is None:
        return None
    begin, end = (model.get(name, default) for name, default in names.items())
    return begin, end


def _stop_token_ids(path: Path, model: Mapping[str, Any], text: Mapping[str, Any]) -> frozenset[int]:
    """Return the ends of a generation as `generate` of Transformers has them: generation_config.json comes first."""
    file = path / "generation_config.json"
    settings = json_of(file, FIELD) if file.exists() else {}
    for source in (settings, model, text):
        found = source.get("eos_token_id")
        if found is not None:
            return frozenset(found if isinstance(found, list) else [found])
    return frozenset()


def _dtype_of(path: Path, model: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    named = model.get("dtype") or model.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype")
    dtype = str(named or "float32").removeprefix("torch.")
    if dtype not in _DTYPES.values():
        raise ConfigError(FIELD, f"{path}: dtype {dtype}", f"one of {', '.join(_DTYPES.values())}; or set model.dtype")
    return dtype


def _size(path: Path, text: Mapping[str, Any], name: str) -> int:
    value = text.get(name)
    if type(value) is not int or value < 1:
        raise ConfigError(FIELD, f"{path}: {name} is {value!r}"[:200], "a positive integer in config.json")
    return value
