"""Builds the keys of encoder outputs, and decides which items may be shared.

    encoder/<fingerprint>/<modality>/<item>      item: vLLM's hash of the content and of how it is processed
    encoder/<fingerprint>/<item>                 with the setting `encoder`

vLLM's hash names a model by its path only. The fingerprint covers everything else that an output depends on: the bytes
of the tower's weights as the workers have them, those of configurations, how the encoder is run, on which device, and
the versions of vLLM and of the packages that compute beside it. Only the names of vLLM's settings are used here, not
its classes. An unknown setting is part of the key: two engines that differ in an irrelevant one encode for themselves,
which is better than a wrong output.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from mmcached.cache.fingerprints import fingerprint
from mmcached.cache.name_files import note_name
from mmcached.cache.output_names import is_exact
from mmcached.cache.store_keys import output_key
from mmcached.client import Client
from mmcached.integrations.identity import OF_PROCESSORS, checkpoint_folder, checkpoint_identity
from mmcached.integrations.vllm.settings import ConnectorSettings

_LOG = logging.getLogger("vllm.mmcached")
_HASH = re.compile("(?!.{16}0{48}$)[0-9a-f]{64}|[0-9a-f]{128}")
"""Hashes of content. Dynamo's names for its router are not: 16 digits, then zeros, which may be of an address."""
_NUMBERED = re.compile(r".*-(image|video|audio|vision_chunk|prompt_embeds)-\d+", re.DOTALL)
"""vLLM's names for items that it does not hash: the same in every engine, whatever their content."""
MAX_NAME = 128
_NOT_OF_THE_ENCODER = frozenset({"text_config", "_name_or_path", "transformers_version", "_commit_hash"})
_NOT_OF_OUTPUTS = frozenset(
    {
        *("limit_per_prompt", "language_model_only", "mm_encoder_only", "enable_mm_embeds", "interleave_mm_strings"),
        *("allow_missing_mm_embeddings", "skip_mm_profiling", "mm_processor_cache_gb", "mm_processor_cache_type"),
        *("mm_shm_cache_max_object_size_mb", "mm_tensor_ipc", "mm_ipc_gpu_memory_gb", "mm_hasher_algorithm"),
        *("mm_encoder_fp8_scale_save_path", "mm_encoder_fp8_scale_save_margin", "mm_encoder_fp8_scale_path"),
    }
)
"""vLLM's multimodal settings that change no output, or only between an encoder server and its consumers."""
OF_PROCESSOR = ("trust_remote_code", "tokenizer_mode", "config_format", "pooler_config")
"""vLLM's settings of a model that select or configure its processor."""
_OF_COMPILATION = (
    *("mode", "backend", "custom_ops", "compile_mm_encoder", "cudagraph_mm_encoder"),
    *("encoder_cudagraph_token_budgets", "encoder_cudagraph_max_vision_items_per_batch"),
)
_NOT_OF_KERNELS = frozenset(
    {
        *("moe_backend", "sparse_indexer_topk_backend", "enable_cutedsl_warmup", "enable_jit_warmup"),
        *("enable_rocm_segmented_attn_autotune",),
    }
)
"""vLLM's settings of kernels that are the language model's, or of their preparation."""


class KeyNamespace:
    """The key prefixes of one engine's items.

    Args:
        vllm: The version of vLLM as imported.
        tower: Returns what all ranks have read of the tower, see `tower.read_tower`; None while it is unknown.
    """

    def __init__(
        self,
        vllm_config: Any,
        settings: ConnectorSettings,
        vllm: str,
        tower: Callable[[], Mapping[str, Any] | None],
    ) -> None:
        self._vllm_config = vllm_config
        self._settings = settings
        self._vllm = vllm
        self._tower = tower
        self._own_name = secrets.token_hex(16)
        self._run_dir = Path()
        self._files: dict[str, str] | None = None
        self._first: Mapping[str, Any] | None = None
        self._seen: Mapping[str, Any] | None = None
        self._made: dict[bool, str] = {}
        self.is_exact = False
        """Whether a found output equals what this engine would compute, bit for bit."""

    def prepare(self, client: Client) -> None:
        """Read the checkpoint's small files, unless another process of this host has done so.

        Raises:
            OSError: The checkpoint cannot be read.
        """
        files = {}
        if not self._settings.encoder:
            scales = getattr(self._vllm_config.model_config.multimodal_config, "mm_encoder_fp8_scale_path", None)
            files["scales"] = checkpoint_identity(scales, client) if scales else ""
            files["checkpoint"] = self._settings.checkpoint
            if not self._settings.checkpoint:
                path = checkpoint_path(self._vllm_config)
                files["checkpoint"] = checkpoint_identity(path, client, suffixes=OF_PROCESSORS)
        self._run_dir, self._files = client.run_dir, files

    def prefix(self, modality: str) -> str:
        """Return the key prefix of a modality's items; empty where nothing is shared.

        That is before `prepare` has ended, while the tower is unknown, and with `only_exact` for one that is not exact.

        Args:
            modality: "" for a prefix that changes with each of the others.
        """
        tower = None if self._files is None else self._tower()
        if tower is None:
            return ""
        if tower is not self._seen:
            self._seen, self._made = tower, {}
            self._first = self._first or tower
        has_words = not (modality == "image" and tower["is_image_wordless"])
        if has_words not in self._made:
            self._made[has_words] = self._fingerprint(tower, has_words=has_words)
        made = self._made[has_words]
        return output_key(made, "", "" if self._settings.encoder else modality) if made else ""

    def _fingerprint(self, tower: Mapping[str, Any], *, has_words: bool) -> str:
        weights = {"tower": tower["tower"], "words": tower["words"] if has_words else None}
        if self._settings.encoder:
            first = self._first or tower
            is_first = all(first[name] == tower[name] for name in ("tower", "words"))
            return _fingerprint_of_encoder(self._settings.encoder, "" if is_first else f"{self._own_name} {weights}")
        files = self._files or {}
        rows = rows_of_engine(self._vllm_config, self._settings, self._vllm, tower, files)
        self.is_exact = is_exact(rows)
        if self._settings.only_exact and not self.is_exact:
            _LOG.warning("mmcached: nothing is shared: only_exact is set, and this vLLM is not batch-invariant")
            return ""
        return note_name(self._run_dir, {**rows, "weights": {**rows["weights"], **weights}})


def key_of(encoder: str, item: str) -> str:
    """Return the key of an item for engines with this setting `encoder` whose weights never change.

    Args:
        item: The name of the item in requests (`uuid`).
    """
    return output_key(_fingerprint_of_encoder(encoder, ""), item)


def _fingerprint_of_encoder(encoder: str, own: str) -> str:
    return fingerprint({"encoder": encoder, "own": own})


def rows_of_engine(
    vllm_config: Any,
    settings: ConnectorSettings,
    vllm: str,
    tower: Mapping[str, Any],
    files: Mapping[str, str],
) -> dict[str, Any]:
    """Return all that an output depends on beside its item, by the rows of `output_names.ROWS`.

    Args:
        vllm: The version of vLLM.
        tower: What all ranks have read of the tower.
        files: Digests of the processor's files (`checkpoint`) and of the scales of an fp8 tower (`scales`).
    """
    model = vllm_config.model_config
    parallel, compilation = (getattr(vllm_config, f"{name}_config", None) for name in ("parallel", "compilation"))
    of_compiler = ("inductor_compile_config",) if getattr(compilation, "compile_mm_encoder", False) else ()
    encoder = _settings_of(getattr(model, "multimodal_config", None), without=_NOT_OF_OUTPUTS)
    return {
        "host": "vllm",
        "weights": {"weights_version": settings.weights_version},
        "model": _plain({k: v for k, v in model.hf_config.to_dict().items() if k not in _NOT_OF_THE_ENCODER}),
        "processor": {
            "files": files["checkpoint"],
            "revision": _plain(model.revision),
            "settings": {**_named(model, OF_PROCESSOR), **_without(encoder, "attn", "tp_mode")},
        },
        "code": {"vllm": vllm, "model_impl": _plain(getattr(model, "model_impl", None))},
        "dtype": str(model.dtype),
        "attention": {
            "encoder": _only(encoder, "attn"),
            "engine": _settings_of(getattr(vllm_config, "attention_config", None)),
        },
        "threads": None,  # of no use where `batching` is "any"; an exact name is one of a GPU
        **{row: tower[row] for row in ("device", "libraries", "variables", "precision")},
        "ranks": {
            "tensor_parallel_size": _plain(getattr(parallel, "tensor_parallel_size", None)),
            "encoder": _only(encoder, "tp_mode"),
        },
        "compilation": {
            "compiler": _named(compilation, (*_OF_COMPILATION, *of_compiler)),
            "kernels": _settings_of(getattr(vllm_config, "kernel_config", None), without=_NOT_OF_KERNELS),
            "platform": _plain(getattr(vllm_config, "additional_config", None)),
        },
        "quantization": {
            "method": _plain(model.quantization),
            "options": _plain(getattr(model, "quantization_config", None)),
            "scales": files["scales"],
        },
        "adapters": None,  # an engine with adapters on the tower does not share
        "batching": "invariant" if _is_batch_invariant(tower, compilation) else "any",
    }


def _is_batch_invariant(tower: Mapping[str, Any], compilation: Any) -> bool:
    """Return whether vLLM's tower computes the same for an item in every batch.

    vLLM has such kernels for CUDA only; compiled code does not go through them.
    """
    devices = tower["device"] if isinstance(tower["device"], list) else [tower["device"]]
    variables = tower["variables"] if isinstance(tower["variables"], list) else [tower["variables"]]
    values = [each.get("VLLM_BATCH_INVARIANT", "") for each in variables]
    is_asked = all(value.isdecimal() and int(value) > 0 for value in values)
    return (
        is_asked
        and all(device["type"] == "cuda" for device in devices)
        and not getattr(compilation, "compile_mm_encoder", False)
    )


def checkpoint_path(vllm_config: Any) -> Path:
    """Return the folder with the model's files on this host.

    Raises:
        OSError: The files are not on this host; the setting `checkpoint` must be set.
    """
    model = vllm_config.model_config
    return checkpoint_folder(model.model, model.revision, getattr(vllm_config.load_config, "download_dir", None))


def is_content_hash(name: str) -> bool:
    """Return whether an item's name has the form of a hash of content; names of clients and counters have not."""
    return _HASH.fullmatch(name) is not None


class Sharing:
    """Decides which items of an engine may be shared with others.

    Args:
        is_possible: False for an engine whose encoder outputs are not in vLLM's encoder cache, or depend on more.
        has_named: Also share items that a client has named.
    """

    def __init__(self, *, is_possible: bool, has_named: bool) -> None:
        self._is_possible = is_possible
        self._has_named = has_named

    @classmethod
    def of(cls, vllm_config: Any, settings: ConnectorSettings) -> Sharing:
        """Return the sharing rules of an engine: none is shared with tower adapters, or in encoder-decoder models."""
        adapters = getattr(vllm_config, "lora_config", None)
        is_possible = not (
            getattr(adapters, "enable_tower_connector_lora", False) or vllm_config.model_config.is_encoder_decoder
        )
        return cls(is_possible=is_possible, has_named=settings.share_named_items)

    def may_share(self, feature: Any) -> bool:
        """Return whether an item's name identifies its content on the whole host."""
        name = feature.identifier
        if not self._is_possible or (feature.mm_hash or name) != name or feature.modality == "prompt_embeds":
            return False
        if is_content_hash(name):
            return True
        return self._has_named and len(name) <= MAX_NAME and not _NUMBERED.fullmatch(name)


def _settings_of(config: Any, without: Set[str] = frozenset()) -> dict[str, Any]:
    return {} if config is None else _named(config, [name for name in sorted(vars(config)) if name not in without])


def _only(settings: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if any(part in name for part in parts)}


def _without(settings: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _only(settings, *parts)}


def _named(config: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: _plain(getattr(config, name, None)) for name in names}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)
