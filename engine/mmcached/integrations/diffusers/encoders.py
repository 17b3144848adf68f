"""Known encoders of pipelines: on what a call's output depends, the form of the output, and its parts in a record.

    text     tokens and mask                          ──> states of the last layer or of all, a pooled part
    vision   pixels of reference images               ──> the same
    VAE      pixels of reference images or a video    ──> mean and variance of the latents

Of a VAE the record has the distribution's parameters: each picture draws its own latents from its own generator.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mmcached.integrations.record_form import PartForm, RecordForm
from mmcached.worker.encoders.families import Family

Asked = Mapping[str, Any]
"""Arguments on which the output of a call depends."""
_TOKENS = ("input_ids", "attention_mask")
_PIXELS = ("pixel_values",)
_TILES = ("pixel_values", "image_grid_thw")


class Encoder(Protocol):
    """A module of a pipeline whose outputs can be shared.

    Attributes:
        module: The module whose method is replaced.
        family: The method, and children of the module on which its output does not depend.
    """

    module: Any
    family: Family

    def asked(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what a call's output depends on beside the module; None if the call is not shared."""

    def form(self, asked: Asked, dtype: torch.dtype) -> RecordForm:
        """Return the form of the output's record."""

    def record(self, output: Any) -> dict[str, Any]:
        """Return the parts of an output, on their device."""

    def output(self, record: Mapping[str, Any], asked: Asked) -> Any:
        """Return the output that has these parts."""


def find_encoder(module: Any) -> Encoder | None:
    """Return the encoder in a module of a pipeline; None if its class is not known."""
    kind = type(module)
    if kind.__name__ in _GENERATORS and kind.__module__.startswith("transformers."):
        return find_encoder(module.model)  # the head that follows is computed with each call
    if kind.__name__ in _KINDS and kind.__module__.startswith("transformers."):
        return _States(module, _KINDS[kind.__name__])
    if kind.__name__ == "T5EncoderModel" and kind.__module__.startswith("vllm_omni."):
        return _EngineT5(module)
    if (known := next(filter(_is_vae, kind.__mro__), None)) is not None and _package_of(kind) in _OF_VAES:
        return _Vae(module, known)
    return None


# ---- encoders of Transformers


@dataclass(frozen=True, slots=True)
class _Kind:
    """A class of encoders.

    Attributes:
        output: Its class of outputs, in its own module.
        inputs: Tensors that it takes; the first is required.
        pooled: Name of the pooled part, and the setting with that part's width.
        length: Returns the number of positions of a call.
        settings: Plain arguments that it takes.
    """

    output: str
    inputs: tuple[str, ...] = _TOKENS
    pooled: tuple[str, str] | None = None
    length: Callable[[Any, Asked], int] = lambda config, asked: int(asked["input_ids"].shape[1])
    settings: tuple[str, ...] = ()


def _num_patches(config: Any, asked: Asked) -> int:
    *_, height, width = asked["pixel_values"].shape
    return int(height // config.patch_size * (width // config.patch_size))


def _num_patches_and_class(config: Any, asked: Asked) -> int:
    return 1 + _num_patches(config, asked)


_SIZED = ("interpolate_pos_encoding",)
_LANGUAGE = _Kind("BaseModelOutputWithPast")
_PICTURED = _Kind("BaseModelOutputWithPast", (*_TOKENS, *_TILES))
_POOLED = ("pooler_output", "hidden_size")
_KINDS: Mapping[str, _Kind] = {
    "CLIPTextModel": _Kind("BaseModelOutputWithPooling", pooled=_POOLED),
    "CLIPTextModelWithProjection": _Kind("CLIPTextModelOutput", pooled=("text_embeds", "projection_dim")),
    "T5EncoderModel": _Kind("BaseModelOutputWithPastAndCrossAttentions"),
    "UMT5EncoderModel": _Kind("BaseModelOutput"),
    "Qwen2VLModel": _PICTURED,
    "Qwen2_5_VLModel": _PICTURED,
    "Qwen3Model": _LANGUAGE,
    "CLIPVisionModel": _Kind("BaseModelOutputWithPooling", _PIXELS, _POOLED, _num_patches_and_class, _SIZED),
    "CLIPVisionModelWithProjection": _Kind(
        "CLIPVisionModelOutput", _PIXELS, ("image_embeds", "projection_dim"), _num_patches_and_class, _SIZED
    ),
    "SiglipVisionModel": _Kind("BaseModelOutputWithPooling", _PIXELS, _POOLED, _num_patches, _SIZED),
}
_GENERATORS = frozenset({"Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration", "Qwen3ForCausalLM"})
_DIMENSIONS = {"input_ids": 2, "attention_mask": 2, "image_grid_thw": 2}


class _States:
    """An encoder of Transformers."""

    def __init__(self, module: Any, kind: _Kind) -> None:
        self.module = module
        self.family = Family({}, others=frozenset(), method="forward")
        self._kind = kind
        self._config = module.config.get_text_config() if "input_ids" in kind.inputs else module.config

    def asked(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any] | None:
        asked = _arguments(type(self.module).forward, self.module, values, named)
        config = self.module.config
        has_states = asked.setdefault("output_hidden_states", bool(config.output_hidden_states))
        is_whole = asked.pop("return_dict", config.return_dict) and type(has_states) is bool
        is_kept = asked.pop("output_attentions", False) or config.output_attentions or asked.pop("use_cache", False)
        inputs, settings = self._kind.inputs, (*self._kind.settings, "output_hidden_states")
        if not is_whole or is_kept or asked.keys() - {*inputs, *settings} or inputs[0] not in asked:
            return None
        tensors = {name: asked[name] for name in inputs if name in asked}
        is_plain = all(type(each) is torch.Tensor for each in tensors.values())
        if not is_plain or any(type(asked[name]) is not bool for name in settings if name in asked):
            return None
        has_dimensions = all(each.dim() == _DIMENSIONS.get(name, each.dim()) for name, each in tensors.items())
        return asked if has_dimensions and all(each.is_contiguous() for each in tensors.values()) else None

    def form(self, asked: Asked, dtype: torch.dtype) -> RecordForm:
        config = self._config
        num_rows = len(asked[self._kind.inputs[0]])
        states = PartForm((self._kind.length(config, asked), config.hidden_size), dtype, num_rows)
        parts: dict[str, Any] = {"last_hidden_state": states}
        if self._kind.pooled is not None and getattr(config, "vision_use_head", True):
            pooled, width = self._kind.pooled
            parts[pooled] = PartForm((getattr(config, width),), dtype, num_rows)
        if asked["output_hidden_states"]:
            parts["hidden_states"] = (states,) * (config.num_hidden_layers + 1)
        return RecordForm(parts)

    def record(self, output: Any) -> dict[str, Any]:
        return {
            name: list(part) if isinstance(part, tuple) else part
            for name, part in output.items()
            if name != "past_key_values"
        }

    def output(self, record: Mapping[str, Any], asked: Asked) -> Any:
        kind = getattr(sys.modules[type(self.module).__module__], self._kind.output)
        return kind(**{name: tuple(part) if isinstance(part, list) else part for name, part in record.items()})


class _EngineT5:
    """The T5 encoder of vllm-omni, which its ranks of tensor parallelism compute together."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.family = Family({}, others=frozenset(), method="forward")

    def asked(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any] | None:
        asked = _arguments(type(self.module).forward, self.module, values, named)
        # One rank that found an output would leave the others waiting.
        is_alone = sys.modules["vllm.distributed"].get_tensor_model_parallel_world_size() == 1
        is_known = asked.keys() <= {*_TOKENS} and "input_ids" in asked and is_alone
        is_plain = all(type(each) is torch.Tensor and each.dim() == 2 for each in asked.values())
        return asked if is_known and is_plain and all(each.is_contiguous() for each in asked.values()) else None

    def form(self, asked: Asked, dtype: torch.dtype) -> RecordForm:
        num_rows, length = asked["input_ids"].shape
        return RecordForm({"last_hidden_state": PartForm((length, self.module.config.d_model), dtype, num_rows)})

    def record(self, output: Any) -> dict[str, Any]:
        return {"last_hidden_state": output[0]}

    def output(self, record: Mapping[str, Any], asked: Asked) -> Any:
        return (record["last_hidden_state"],)


# ---- VAEs of diffusers, and what vllm-omni derives from them

_OF_VAES = frozenset({"diffusers", "vllm_omni"})
_VAES = frozenset({"AutoencoderKL", "AutoencoderKLWan", "AutoencoderKLQwenImage", "AutoencoderKLLTXVideo"})
_OF_DECODERS = frozenset({"decoder", "post_quant_conv"})


class _Vae:
    """A VAE whose `encode` returns a Gaussian distribution.

    Args:
        known: Its class in diffusers, whose module has the classes of outputs.
    """

    def __init__(self, module: Any, known: type) -> None:
        self.module = module
        self._known = known
        self.family = Family({}, others=_OF_DECODERS, method="encode")
        if hasattr(module, "clear_cache"):
            module.clear_cache()  # as after each call: attributes that it sets are a part of the name

    def asked(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any] | None:
        asked = _arguments(type(self.module).encode, self.module, values, named)
        pixels = asked.get("x")
        is_known = asked.keys() <= {"x", "return_dict"} and type(asked.setdefault("return_dict", True)) is bool
        if type(pixels) is not torch.Tensor or not is_known or pixels.dim() not in (4, 5):
            return None
        executor = getattr(self.module, "distributed_executor", None)
        if executor is not None and executor.world_size != 1:  # its ranks compute tiles together
            return None
        # The memory format of weights and pixels, such as channels last, selects kernels and is in no digest.
        tensors = [pixels, *(each for name, each in self.module.named_parameters() if not _is_of_decoder(name))]
        return asked if all(each.is_contiguous() for each in tensors) else None

    def form(self, asked: Asked, dtype: torch.dtype) -> RecordForm:
        return RecordForm({"parameters": PartForm((None,) * (asked["x"].dim() - 1), dtype, len(asked["x"]))})

    def record(self, output: Any) -> dict[str, Any]:
        return {"parameters": (output[0] if type(output) is tuple else output.latent_dist).parameters}

    def output(self, record: Mapping[str, Any], asked: Asked) -> Any:
        space = sys.modules[self._known.__module__]
        posterior = space.DiagonalGaussianDistribution(record["parameters"])
        return space.AutoencoderKLOutput(latent_dist=posterior) if asked["return_dict"] else (posterior,)


def _is_vae(kind: type) -> bool:
    return kind.__name__ in _VAES and _package_of(kind) == "diffusers"


def _package_of(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_of_decoder(name: str) -> bool:
    return name.partition(".")[0] in _OF_DECODERS


def _arguments(
    method: Callable[..., Any], module: Any, values: tuple[Any, ...], named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call of a module's method by name, without those that are None."""
    bound = inspect.signature(method).bind(module, *values, **named)
    given = dict(bound.arguments)
    rest = next((each.name for each in bound.signature.parameters.values() if each.kind is each.VAR_KEYWORD), "")
    given |= given.pop(rest, {})
    del given["self"]
    return {name: value for name, value in given.items() if value is not None}
