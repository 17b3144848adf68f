"""Computes the namespace of SGLang's embeddings and the key of an item.

    content of the checkpoint | MMCACHED_NAMESPACE ──┐
    SGLang's arguments                               ├──> namespace ──┐
    versions, variables, kind of device              ┘                ├──> key
    SGLang's hashes of the item's pixels ─────────────────────────────┘

SGLang's hashes have 64 bits and cover the item alone, so everything else is in the namespace, except the batching: an
embedding is shared as it was computed once, as in SGLang's own cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.integrations.embedding_width import embedding_width
from mmcached.integrations.environment import PACKAGES, computing_variables
from mmcached.integrations.identity import checkpoint_folder, checkpoint_identity
from mmcached.integrations.record_form import PartForm
from mmcached.integrations.sglang.settings import NAMESPACE, SglangSettings
from mmcached.wire.errors import ConfigError
from mmcached.wire.extras import package_versions

OF_MODEL = (
    *("revision", "dtype", "quantization", "load_format", "model_impl"),
    *("model_loader_extra_config", "json_model_override_args"),
)
OF_ITEMS = (
    *("mm_attention_backend", "mm_process_config", "mm_enable_dp_encoder", "image_processor_backend"),
    "disable_fast_image_processor",
)
OF_THE_SERVER = (
    *("attention_backend", "prefill_attention_backend", "enable_deterministic_inference", "rl_on_policy_target"),
    *("enable_tf32_matmul", "enable_precise_embedding_interpolation", "enable_torch_compile"),
    *("bf16_gemm_backend", "fp8_gemm_runner_backend", "tp_size"),
)
FROM_THE_FOLDER = frozenset(
    {
        *("auto", "pt", "safetensors", "instanttensor", "fastsafetensors", "runai_streamer", "npcache", "gguf"),
        *("sharded_state", "presharded", "expert_pack", "bitsandbytes", "mistral", "layered", "flash_rl"),
    }
)
"""Load formats whose weights are those in the checkpoint's folder; other formats generate or download them."""


def item_key(namespace: str, *hashes: int | str) -> str:
    return f"encoder/{namespace}/{blake3(','.join(map(str, hashes)).encode()).hexdigest(16)}"


def namespace(room: str, settings: SglangSettings, client: Client) -> str:
    """Return the fingerprint of all that this process's embeddings depend on; reads the checkpoint if the host has no
    digest.

    Args:
        room: The adapter part; records of encoder servers and of engines have different forms.

    Raises:
        ConfigError: The content of the checkpoint is unknown here, and no setting names it.
    """
    parts: dict[str, Any] = {"host": "sglang", "room": room}
    parts |= {"packages": package_versions(PACKAGES), "variables": computing_variables()}
    published = _published()
    if published is not None:
        model, items, device = published
        parts["model"] = {name: getattr(model, name) for name in OF_MODEL}
        parts["items"] = {name: getattr(items, name) for name in OF_ITEMS}
        parts["device"] = _device_name(device.device)
        parts["server"] = {name: _plain(value) for name, value in _server_arguments().items()}
    if settings.namespace:
        parts["named"] = settings.namespace
    elif published is not None:
        parts["weights"] = checkpoint_identity(_folder(published[0]), client)
    else:
        raise ConfigError(NAMESPACE, "", "must name model, revision and dtype: SGLang has no arguments in this process")
    return fingerprint(parts)


def forms_of_embeddings() -> list[PartForm]:
    """Return the possible forms of embeddings of SGLang's model; empty if the model is unknown."""
    if _published() is None:
        return []
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.runtime_context import get_server_args

    model = ModelConfig.from_server_args(get_server_args())
    config = model.hf_config.to_dict()
    modalities = ("image", "audio") if _has_audio(config) else ("image",)
    widths = dict.fromkeys(embedding_width(model.hidden_size, config, modality) for modality in modalities)
    return [PartForm((width,), model.dtype, None) for width in widths]


def _has_audio(config: Mapping[str, Any]) -> bool:
    """Return whether a model's configuration, at any depth, has an audio tower."""
    nested = [each for each in config.values() if isinstance(each, Mapping)]
    return "audio_config" in config or any(map(_has_audio, nested))


def _server_arguments() -> dict[str, Any]:
    from sglang.srt.runtime_context import get_server_args

    return {name: getattr(get_server_args(), name, None) for name in OF_THE_SERVER}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _published() -> tuple[Any, Any, Any] | None:
    """Return SGLang's arguments for model, items and device; None where it has not published them."""
    from sglang.srt import runtime_context

    try:
        return runtime_context.get_model(), runtime_context.get_mm(), runtime_context.get_device()
    except ValueError:
        return None


def _device_name(device: str) -> str:
    import torch

    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return f"{device} {name()}" if name is not None else device


def _folder(model: Any) -> Path:
    """Return the folder of the checkpoint; ConfigError if the weights come from none, or it is not on this host."""
    if model.load_format not in FROM_THE_FOLDER:
        limit = f"must name the weights: with --load-format {model.load_format} no folder has them"
        raise ConfigError(NAMESPACE, "", limit)
    try:
        return checkpoint_folder(model.model_path, model.revision, model.download_dir)
    except OSError as error:
        limit = f"must name the weights: no folder of {model.model_path!r} is found here ({error})"
        raise ConfigError(NAMESPACE, "", limit) from error
