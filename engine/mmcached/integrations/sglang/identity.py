"""Computes the namespace of SGLang's embeddings and the key of an item.

    weights of the tower, else content of the checkpoint | MMCACHED_NAMESPACE ──┐
    SGLang's arguments, small files of the checkpoint                           ├──> namespace ──┐
    versions, variables, kind of device                                         ┘                ├──> key
    SGLang's hashes of the item's pixels ────────────────────────────────────────────────────────┘

SGLang's hashes have 64 bits and cover the item alone, so everything else is in the namespace, except the composition of
batches: an embedding is shared as it was computed once, as in SGLang's own cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

from mmcached.cache.name_files import note_name
from mmcached.cache.output_names import PACKAGES
from mmcached.cache.store_keys import output_key
from mmcached.client import Client
from mmcached.integrations.embedding_width import embedding_width
from mmcached.integrations.identity import OF_PROCESSORS, checkpoint_folder, checkpoint_identity
from mmcached.integrations.record_form import PartForm
from mmcached.integrations.sglang.settings import NAMESPACE, SglangSettings
from mmcached.wire.errors import ConfigError
from mmcached.worker.encoders.computing import computing_rows

OF_WEIGHTS = ("revision", "load_format", "model_loader_extra_config")
OF_MODEL = ("model_impl", "json_model_override_args", "trust_remote_code")
OF_PROCESSOR = ("mm_process_config", "image_processor_backend", "disable_fast_image_processor")
OF_ATTENTION = ("attention_backend", "prefill_attention_backend")
OF_PRECISION = (
    *("enable_deterministic_inference", "rl_on_policy_target", "enable_tf32_matmul"),
    *("enable_precise_embedding_interpolation", "bf16_gemm_backend", "fp8_gemm_runner_backend"),
)
FROM_THE_FOLDER = frozenset(
    {
        *("auto", "pt", "safetensors", "instanttensor", "fastsafetensors", "runai_streamer", "npcache", "gguf"),
        *("sharded_state", "presharded", "expert_pack", "bitsandbytes", "mistral", "layered", "flash_rl"),
    }
)
"""Load formats whose weights are those in the checkpoint's folder; other formats generate or download them."""


def item_key(namespace: str, *hashes: int | str) -> str:
    return output_key(namespace, blake3(",".join(map(str, hashes)).encode()).hexdigest(16))


def namespace(
    room: str, settings: SglangSettings, client: Client, *, tower: str | list[str] | None = None, is_first: bool = True
) -> str:
    """Return the name of this process's embeddings; reads the checkpoint if the host has no digest.

    Args:
        room: The adapter part; records of encoder servers and of engines have different forms.
        tower: Digest of the tower's weights in this process, by rank where ranks differ; None if it is unknown.
        is_first: Whether this was the tower at start, which the setting `namespace` names.

    Raises:
        ConfigError: The content of the checkpoint is unknown here, and no setting names it.
    """
    import torch

    published = _published()
    model, items, device = (None, None, None) if published is None else published
    files = None
    if settings.namespace:
        weights = {"named": settings.namespace} | ({} if is_first else {"tower": tower})
    elif tower is not None and published is not None:
        weights, files = {"tower": tower}, checkpoint_identity(_local(model), client, suffixes=OF_PROCESSORS)
    elif published is not None:
        weights = {"checkpoint": checkpoint_identity(_folder(model), client)}
    else:
        raise ConfigError(NAMESPACE, "", "must name model, revision and dtype: SGLang has no arguments in this process")
    server = {} if published is None else _server_arguments()
    rows = {
        "host": f"sglang {room}",
        "weights": {**weights, **(_named(model, OF_WEIGHTS) if files is None else {})},
        "model": {**_named(model, OF_MODEL), "files": files},
        # SGLang's hash is of the pixels, or else of the picture's file: then it lacks the processor's files.
        "processor": {**_named(items, OF_PROCESSOR), "files": None if model is None else files_of_processor(client)},
        "code": None,  # of the version of SGLang
        "dtype": _named(model, ("dtype",)),
        "attention": {**_named(items, ("mm_attention_backend",)), **_only(server, OF_ATTENTION)},
        "threads": None,  # of no use where `batching` is "any"
        **computing_rows(None if device is None else torch.device(device.device), PACKAGES),
        "ranks": {**_only(server, ("tp_size",)), **_named(items, ("mm_enable_dp_encoder",))},
        "compilation": _only(server, ("enable_torch_compile",)),
        "quantization": _named(model, ("quantization",)),
        "adapters": None,  # SGLang has none of the tower
        "batching": "any",
    }
    rows["precision"] = {**rows["precision"], **_only(server, OF_PRECISION)}
    return note_name(client.run_dir, rows)


def files_of_processor(client: Client) -> str | None:
    """Return the identity of the files that SGLang's processor reads; None if they are not on this host.

    Raises:
        OSError: A file cannot be read.
    """
    from sglang.srt.runtime_context import get_model, get_serving

    try:
        folder = checkpoint_folder(get_serving().tokenizer_path, get_model().revision, None)
    except OSError:
        return None
    return checkpoint_identity(folder, client, suffixes=OF_PROCESSORS)


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

    names = (*OF_ATTENTION, *OF_PRECISION, "tp_size", "enable_torch_compile")
    return {name: _plain(getattr(get_server_args(), name, None)) for name in names}


def _named(arguments: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return some of SGLang's arguments; none if SGLang has not published them."""
    return {} if arguments is None else {name: getattr(arguments, name) for name in names}


def _only(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _published() -> tuple[Any, Any, Any] | None:
    """Return SGLang's arguments for model, items and device; None where it has not published them."""
    from sglang.srt import runtime_context

    try:
        return runtime_context.get_model(), runtime_context.get_mm(), runtime_context.get_device()
    except ValueError:
        return None


def _folder(model: Any) -> Path:
    """Return the folder of the checkpoint; ConfigError if the weights come from none, or it is not on this host."""
    if model.load_format not in FROM_THE_FOLDER:
        limit = f"must name the weights: with --load-format {model.load_format} no folder has them"
        raise ConfigError(NAMESPACE, "", limit)
    return _local(model)


def _local(model: Any) -> Path:
    try:
        return checkpoint_folder(model.model_path, model.revision, model.download_dir)
    except OSError as error:
        limit = f"must name the weights: no folder of {model.model_path!r} is found here ({error})"
        raise ConfigError(NAMESPACE, "", limit) from error
