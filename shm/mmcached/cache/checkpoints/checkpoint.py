"""Reads the small files of a local checkpoint, and says why it cannot be served before anything is started.

Knows nothing of weights. What the folder says is its owner's word: it is the operator's, as the service is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmcached.cache.checkpoints.architectures import ARCHITECTURES, Architecture
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError

FIELD = "encoder.path"
EXTRA = ("transformers", "safetensors")
"""What `pip install 'mmcached[hf]'` brings, and a service with a checkpoint needs."""
_PACKAGES = ("transformers", "torch", "torchvision", "numpy", "pillow")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One folder.

    Attributes:
        architecture: class of Transformers that wrote it.
        model: its configuration.
        processor: settings of its image processor.
    """

    path: Path
    architecture: str
    model: Mapping[str, Any]
    processor: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read a folder.

        Raises:
            ConfigError: it is no checkpoint of a known architecture with safetensors and an image processor.
        """
        model = _json_of(path / "config.json")
        named = model.get("architectures") or [""]
        if named[0] not in ARCHITECTURES:
            raise ConfigError(FIELD, f"{path}: {named[0] or 'no architecture'}", f"one of {', '.join(ARCHITECTURES)}")
        if not any(path.glob("*.safetensors")):
            raise ConfigError(FIELD, str(path), "has no *.safetensors: other formats of weights are not read")
        return cls(path, named[0], model, _processor_of(path))

    @property
    def counting(self) -> Architecture:
        return ARCHITECTURES[self.architecture]

    @property
    def max_embeds_per_item(self) -> int:
        return self.counting.largest(self.model, self.processor)

    def num_embeds(self, tensors: Mapping[str, Any]) -> int:
        """Return how many embeddings an item has, by the tensors that the processor has made of it.

        Raises:
            InvalidRequest: they are not of one picture.
        """
        return self.counting.count(self.model, tensors)


def checkpoint_of(config: ServiceConfig) -> Checkpoint | None:
    """Return the checkpoint that a service encodes with; None: it has the reference encoder.

    Raises:
        ConfigError: as `Checkpoint.open`.
    """
    if config.encoder.kind == "reference" or not config.has_workers:
        return None
    if not config.encoder.path:
        raise ConfigError(FIELD, "", "must be the folder of a checkpoint: encoder.kind is hf")
    return Checkpoint.open(Path(config.encoder.path))


def max_embeds_per_item(config: ServiceConfig) -> int:
    """Return how many embeddings the largest item of a service has. Raises ConfigError as `checkpoint_of`."""
    checkpoint = checkpoint_of(config)
    return config.model.max_patches_per_image if checkpoint is None else checkpoint.max_embeds_per_item


def check_encoder(config: ServiceConfig) -> None:
    """Refuse what cannot be served, before a process is started.

    Raises:
        ConfigError: as `checkpoint_of`; or a package is not installed.
    """
    if checkpoint_of(config) is not None:
        check_packages()
    if config.encoder.ray_address and config.has_workers and find_spec("ray") is None:
        raise ConfigError(
            "encoder.ray_address", config.encoder.ray_address, "needs ray, not installed: pip install 'mmcached[ray]'"
        )


def check_packages() -> None:
    """Raise ConfigError if a package of the extra is not installed."""
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise ConfigError(
            "encoder.kind", "hf", f"needs {' and '.join(missing)}, not installed: pip install 'mmcached[hf]'"
        )


def package_versions() -> dict[str, str]:
    """Return the versions of all that a processed image, or its encoding, may depend on; "" of what is not there."""
    return {name: _version(name) for name in _PACKAGES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor_of(path: Path) -> Mapping[str, Any]:
    for name in _PROCESSORS:
        if (path / name).exists():
            settings = _json_of(path / name)
            settings = dict(settings.get("image_processor", settings))
            if "image_processor_type" in settings or name == _PROCESSORS[0]:
                return settings
    raise ConfigError(FIELD, str(path), f"has no image processor ({' or '.join(_PROCESSORS)})")


def _json_of(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(FIELD, str(file), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(FIELD, str(file), "is no JSON") from error
    if not isinstance(value, dict):
        raise ConfigError(FIELD, str(file), "is no JSON object")
    return value
