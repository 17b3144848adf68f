"""Names what an encoder output depends on beside its item, and tells items that may be shared from those that may not.

    encoder/<fingerprint>/<item>      item: vLLM's hash of the content and of how it is processed

vLLM's hash names a model by its path only. What else an output depends on is in the fingerprint: the bytes of weights
and configurations, how the encoder is run, and by which vLLM. Knows nothing of vLLM but the names of its settings.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.integrations.identity import checkpoint_folder, checkpoint_identity
from mmcached.integrations.vllm.settings import Settings

_HASH = re.compile("[0-9a-f]{64}|[0-9a-f]{128}")
_NUMBERED = re.compile(r".*-(image|video|audio|vision_chunk|prompt_embeds)-\d+", re.DOTALL)
"""What vLLM calls items that it does not hash: the same in every engine, whatever the picture."""
MAX_NAME = 128
_NOT_OF_THE_ENCODER = frozenset({"text_config", "_name_or_path", "transformers_version", "_commit_hash"})
_ENCODER_SETTINGS = ("mm_processor_kwargs", "media_io_kwargs", "mm_encoder_attn_backend", "video_pruning_rate")


class Namespace:
    """What the keys of one engine's items begin with.

    Args:
        versions: of vLLM and what computes beside it, and the kind of device.
        resets: returns how often the engine's weights have been changed since it started. An engine that was changed
            shares with no other: nobody knows to what.
    """

    def __init__(
        self, vllm_config: Any, settings: Settings, versions: Mapping[str, str], resets: Callable[[], int]
    ) -> None:
        self._vllm_config = vllm_config
        self._settings = settings
        self._versions = versions
        self._resets = resets
        self._own_name = secrets.token_hex(16)
        self._parts: dict[str, Any] | None = None
        self._made: tuple[int, str] = (-1, "")

    def prepare(self, client: Client) -> None:
        """Read the checkpoint, unless somebody on this host has done so: seconds to minutes, once per host.

        Raises:
            OSError: it cannot be read.
        """
        if self._settings.encoder:
            self._parts = {"encoder": self._settings.encoder}
            return
        checkpoint = self._settings.checkpoint or checkpoint_identity(checkpoint_path(self._vllm_config), client)
        self._parts = parts_of(self._vllm_config, self._settings, self._versions, checkpoint)

    def prefix(self) -> str:
        """Return the beginning of keys; empty before `prepare` has ended."""
        if self._parts is None:
            return ""
        if (resets := self._resets()) != self._made[0]:
            own = f"{self._own_name}.{resets}" if resets else ""
            self._made = (resets, _prefix(self._parts, own))
        return self._made[1]


def key_of(encoder: str, item: str) -> str:
    """Return the key of an item for engines whose setting `encoder` is this, and whose weights never change.

    Args:
        item: what requests call it, as `uuid`.
    """
    return _prefix({"encoder": encoder}, "") + item


def _prefix(parts: Mapping[str, Any], own: str) -> str:
    return f"encoder/{fingerprint({**parts, 'own': own})}/"


def parts_of(vllm_config: Any, settings: Settings, versions: Mapping[str, str], checkpoint: str) -> dict[str, Any]:
    """Return all that an output depends on beside its item, as JSON values."""
    model = vllm_config.model_config
    encoder = getattr(model, "multimodal_config", None)
    return {
        "host": "vllm",
        "versions": dict(versions),
        "checkpoint": checkpoint,
        "weights_version": settings.weights_version,
        "revision": _plain(model.revision),
        "commit": _plain(getattr(model.hf_config, "_commit_hash", None)),
        "load_format": _plain(getattr(vllm_config.load_config, "load_format", None)),
        "dtype": str(model.dtype),
        "quantization": _plain(model.quantization),
        "vision": _plain({k: v for k, v in model.hf_config.to_dict().items() if k not in _NOT_OF_THE_ENCODER}),
        "settings": {name: _plain(getattr(encoder, name, None)) for name in _ENCODER_SETTINGS},
    }


def checkpoint_path(vllm_config: Any) -> Path:
    """Return where the model's files lie on this host.

    Raises:
        OSError: they do not; then `checkpoint` must be set.
    """
    model = vllm_config.model_config
    return checkpoint_folder(model.model, model.revision, getattr(vllm_config.load_config, "download_dir", None))


def says_what_it_is(name: str) -> bool:
    """Return whether an item's name is a hash of its content, and not one that a client or a counter has given."""
    return _HASH.fullmatch(name) is not None


class Sharing:
    """Tells which items of an engine may be shared with others.

    Args:
        is_possible: False for an engine whose encoder outputs are not in vLLM's encoder cache, or depend on more.
        has_named: also those that a client has named.
    """

    def __init__(self, *, is_possible: bool, has_named: bool) -> None:
        self._is_possible = is_possible
        self._has_named = has_named

    @classmethod
    def of(cls, vllm_config: Any, settings: Settings) -> Sharing:
        """Return what an engine may share: nothing if an adapter changes its encoder, or in encoder-decoder models."""
        adapters = getattr(vllm_config, "lora_config", None)
        is_possible = not (
            getattr(adapters, "enable_tower_connector_lora", False) or vllm_config.model_config.is_encoder_decoder
        )
        return cls(is_possible=is_possible, has_named=settings.share_named_items)

    def may_share(self, feature: Any) -> bool:
        """Return whether an item's name says what it is, on the whole host."""
        name = feature.identifier
        if not self._is_possible or (feature.mm_hash or name) != name or feature.modality == "prompt_embeds":
            return False
        if says_what_it_is(name):
            return True
        return self._has_named and len(name) <= MAX_NAME and not _NUMBERED.fullmatch(name)


def _plain(value: Any) -> Any:
    """Return a value of a configuration as a JSON value."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)
