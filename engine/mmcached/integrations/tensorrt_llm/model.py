"""Describes the encoder of a model of TensorRT-LLM: what decides the bits of its outputs, and their form.

    parameters outside the language model ──all bytes, blake3──> tower ──┐
    configuration, processor's files, versions, settings, kind of device ┴──> rows of the name of outputs

TensorRT-LLM's key of an item covers its decoded content and the arguments of a request for the processor. All else is
in the name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import torch

from mmcached.cache.output_names import PACKAGES
from mmcached.client import Client
from mmcached.integrations.embedding_width import embedding_width
from mmcached.integrations.identity import OF_PROCESSORS, checkpoint_folder, checkpoint_identity
from mmcached.integrations.method_code import names_behind
from mmcached.integrations.record_form import PartForm
from mmcached.wire.errors import ConfigError
from mmcached.worker.encoders.computing import computing_rows
from mmcached.worker.encoders.content import Content

ENCODES = "encode_multimodal_inputs"
"""The model's method that runs its encoders."""
MODALITIES = ("image", "video", "audio")
_OF_TEXT = frozenset({"language_model", "llm", "lm_head", "text_embedding_layer", "embed_tokens"})
_NOT_OF_THE_ENCODER = frozenset({"text_config", "llm_config", "_name_or_path", "transformers_version", "_commit_hash"})
_OF_ATTENTION = ("attn_backend", "vision_attn_backend", "mm_attn_backend")
_OF_COMPILATION = ("use_cuda_graph", "torch_compile_enabled", "enable_min_latency", "force_dynamic_quantization")


def tower_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that the model's encoders may read, by name: all of them if its code names the language model.

    Raises:
        ConfigError: The model has no such tensor.
    """
    tensors: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=True))
    try:
        language: Any = model.language_model
    except (AttributeError, NotImplementedError):
        language = None
    paths = [path for path, module in model.named_modules() if module is language]
    names = _OF_TEXT | {path.rpartition(".")[2] for path in paths}
    if paths and names.isdisjoint(names_behind(type(model), [ENCODES])):
        tensors = {
            name: value for name, value in tensors.items() if not any(name.startswith(f"{path}.") for path in paths)
        }
    if not tensors:
        raise ConfigError("model", type(model).__name__, "has no weights outside its language model")
    return tensors


def digest_of(tensors: dict[str, torch.Tensor]) -> str:
    """Return the digest of tensors' names and bytes; raises what reading a weight raises."""
    content = Content(is_vast=True)
    for name, value in sorted(tensors.items()):
        content.add(name, value.data)
    return content.hexdigest()


def rows_of(model: Any, towers: list[str], client: Client, namespace: str) -> dict[str, Any]:
    """Return all that an output depends on beside its item, by the rows of `output_names.ROWS`.

    Args:
        towers: Digest of the tower of each rank, see `digest_of`.
        namespace: The operator's name for the checkpoint; empty for the content of its small files.

    Raises:
        OSError: The checkpoint is not on this host, or cannot be read.
    """
    settings = model.model_config
    config = settings.pretrained_config
    mapping = settings.mapping
    device = next(iter(tower_tensors(model).values())).device
    files = namespace or checkpoint_identity(
        checkpoint_folder(str(config._name_or_path)), client, suffixes=OF_PROCESSORS
    )
    rows = {
        "host": "tensorrt-llm",
        "weights": {"towers": towers},
        "model": {"class": type(model).__qualname__, "config": _encoder_config(config)},
        "processor": {"files": files},
        "code": {"tensorrt_llm": metadata.version("tensorrt_llm")},
        "dtype": str(getattr(config, "torch_dtype", None) or getattr(config, "dtype", None)),
        "attention": _named(settings, _OF_ATTENTION),
        "threads": None,  # of no use where `batching` is "any"
        **computing_rows(device, PACKAGES),
        "ranks": {"tp_size": mapping.tp_size, "attention_dp": mapping.enable_attention_dp},
        "compilation": _named(settings, _OF_COMPILATION),
        "quantization": str(getattr(settings, "quant_config", None)),
        "adapters": None,  # TensorRT-LLM has none of the encoders
        "batching": "any",
    }
    rows["variables"] = rows["variables"] | {
        name: value for name, value in sorted(os.environ.items()) if name.startswith("TRTLLM_")
    }
    return rows


def forms_of(model: Any) -> list[PartForm]:
    """Return the forms of the model's outputs, of any number of rows."""
    config = model.model_config.pretrained_config
    return [PartForm((width,), dtype, None) for width, dtype in set(_widths(model, config))]


def _widths(model: Any, config: Any) -> Iterator[tuple[int, torch.dtype]]:
    try:
        yield model.embedding_dim, model.embedding_dtype
    except (AttributeError, NotImplementedError):
        text = getattr(config, "text_config", config)
        hidden_size = getattr(text, "hidden_size", None) or getattr(config, "hidden_size", None)
        dtype = next(iter(tower_tensors(model).values())).dtype
        if hidden_size is not None:
            for modality in MODALITIES:
                yield embedding_width(hidden_size, config.to_dict(), modality), dtype


def _encoder_config(config: Any) -> Any:
    found = {name: value for name, value in config.to_dict().items() if name not in _NOT_OF_THE_ENCODER}
    return json.loads(json.dumps(found, default=str))


def _named(settings: Any, names: tuple[str, ...]) -> dict[str, str | None]:
    values = {name: getattr(settings, name, None) for name in names}
    return {name: None if value is None else str(value) for name, value in values.items()}
