"""Names what SGLang's embeddings depend on beside the item, and the key of an item.

    content of the checkpoint | MMCACHED_NAMESPACE ──┐
    what SGLang was started with, its version        ├──> namespace ──┐
    kind of device, torch                            ┘                ├──> key
    SGLang's hashes of the item's pixels ─────────────────────────────┘

SGLang's hashes have 64 bits and are of the item alone, so all else is in the namespace. What depends on how items are
batched is not in it: an embedding is what was computed once, as in SGLang's own cache.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from blake3 import blake3

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.integrations.identity import checkpoint_folder, checkpoint_identity
from mmcached.integrations.sglang.settings import NAMESPACE, Settings
from mmcached.wire.errors import ConfigError

OF_MODEL = (
    *("revision", "dtype", "quantization", "load_format", "model_impl"),
    *("model_loader_extra_config", "json_model_override_args"),
)
OF_ITEMS = ("mm_attention_backend", "mm_process_config", "mm_enable_dp_encoder", "image_processor_backend")
FROM_THE_FOLDER = frozenset(
    {
        *("auto", "pt", "safetensors", "instanttensor", "fastsafetensors", "runai_streamer", "npcache", "gguf"),
        *("sharded_state", "presharded", "expert_pack", "bitsandbytes", "mistral", "layered", "flash_rl"),
    }
)
"""Formats whose weights are those in the checkpoint's folder; the others make them up, or bring them from afar."""


def item_key(namespace: str, *hashes: int | str) -> str:
    """Return the key of an item, or of several that were encoded as one."""
    return f"encoder/{namespace}/{blake3(','.join(map(str, hashes)).encode()).hexdigest(16)}"


def namespace(room: str, settings: Settings, client: Client) -> str:
    """Return the name of all that embeddings of this process depend on; reads a checkpoint that the host does not know.

    Args:
        room: whose records; those of encoder servers and of engines are of different forms.
    Raises:
        ConfigError: the content of the checkpoint cannot be known here, and nothing else names it.
    """
    parts: dict[str, Any] = {"host": "sglang", "room": room}
    parts |= {name: metadata.version(name) for name in ("sglang", "torch")}
    published = _published()
    if published is not None:
        model, items, device = published
        parts["model"] = {name: getattr(model, name) for name in OF_MODEL}
        parts["items"] = {name: getattr(items, name) for name in OF_ITEMS}
        parts["device"] = _device_name(device.device)
    if settings.namespace:
        parts["named"] = settings.namespace
    elif published is not None:
        parts["weights"] = checkpoint_identity(_folder(published[0]), client)
    else:
        raise ConfigError(NAMESPACE, "", "must name model, revision and dtype: SGLang has no arguments in this process")
    return fingerprint(parts)


def _published() -> tuple[Any, Any, Any] | None:
    """Return what SGLang was started with: of model, items and device; None where it has published nothing."""
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
    """Return where the checkpoint lies."""
    if model.load_format not in FROM_THE_FOLDER:
        limit = f"must name the weights: with --load-format {model.load_format} no folder has them"
        raise ConfigError(NAMESPACE, "", limit)
    try:
        return checkpoint_folder(model.model_path, model.revision, model.download_dir)
    except OSError as error:
        limit = f"must name the weights: no folder of {model.model_path!r} is found here ({error})"
        raise ConfigError(NAMESPACE, "", limit) from error
