"""Reads the small files of a local checkpoint, and says why it cannot be served before anything is started.

Knows nothing of weights. What the folder says is its owner's word: it is the operator's, as the service is.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmcached.cache.checkpoints.architectures import ARCHITECTURES
from mmcached.cache.checkpoints.counting import Counting
from mmcached.cache.checkpoints.frames import FrameGrid, WholeClip
from mmcached.cache.checkpoints.sounds import Chunked, Filled
from mmcached.clips.frame_sizes import Sizes
from mmcached.clips.versions import EXTRAS, decoder_of
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.extras import how_to_install, package_versions
from mmcached.wire.vocabulary import Modality

FIELD = "encoder.path"
EXTRA = ("transformers", "safetensors")
"""What the extra `hf` brings, and a service with a checkpoint needs."""
_PACKAGES = ("transformers", "torch", "torchvision", "numpy", "pillow")
_WHOLE = "processor_config.json"
_FILES: Mapping[Modality, tuple[str, ...]] = {
    "image": ("preprocessor_config.json",),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json"),
    "audio": ("preprocessor_config.json",),
}
"""Where the settings of a processor lie that has a file of its own; the first that is there counts."""
_SECTIONS: Mapping[Modality, str] = {
    "image": "image_processor",
    "video": "video_processor",
    "audio": "feature_extractor",
}
"""Of the file that all processors may share."""
_NEEDED: Mapping[Modality, Mapping[str, Any]] = {
    "video": {"do_resize": True, "do_rescale": True, "do_normalize": True, "temporal_patch_size": 2},
    "audio": {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "sampling_rate": 16_000,
        "padding_value": 0.0,
        "dither": 0.0,
    },
}
"""Settings that have one value: our own processing of slices does nothing else."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One folder.

    Attributes:
        architecture: class of Transformers that wrote it.
        model: its configuration; of one that also speaks, that of the part which sees and hears.
        processors: by modality that it takes, the settings of its processor.
    """

    path: Path
    architecture: str
    model: Mapping[str, Any]
    processors: Mapping[Modality, Mapping[str, Any]]

    @classmethod
    def open(cls, path: Path) -> Checkpoint:
        """Read a folder.

        Raises:
            ConfigError: it is no checkpoint of a known architecture with safetensors and its processors.
        """
        model = _json_of(path / "config.json")
        named = model.get("architectures") or [""]
        if named[0] not in ARCHITECTURES:
            raise ConfigError(FIELD, f"{path}: {named[0] or 'no architecture'}", f"one of {', '.join(ARCHITECTURES)}")
        if not any(path.glob("*.safetensors")):
            raise ConfigError(FIELD, str(path), "has no *.safetensors: other formats of weights are not read")
        processors = {modality: _processor_of(path, modality) for modality in ARCHITECTURES[named[0]]}
        return cls(path, named[0], model.get("thinker_config") or model, processors)

    @property
    def countings(self) -> Mapping[Modality, Counting]:
        """How embeddings are counted, by modality that it takes."""
        return ARCHITECTURES[self.architecture]

    @property
    def max_embeds_per_item(self) -> int:
        return max(each.largest(self.model, self.processors[of]) for of, each in self.countings.items())

    def num_embeds(self, modality: Modality, tensors: Mapping[str, Any]) -> int:
        """Return how many embeddings an item has, by the tensors that its processor has made of it.

        Raises:
            InvalidRequest: they are not of one item.
        """
        return self.countings[modality].count(self.model, tensors)

    def modality_of(self, names: Container[str]) -> Modality:
        """Return of which modality an item is that has tensors with these names; if of none, any that it takes."""
        of = {modality: each for modality, each in self.countings.items() if each.inputs[0] in names}
        return next(iter(of or self.countings))


def checkpoint_of(config: ServiceConfig) -> Checkpoint | None:
    """Return the checkpoint that a service encodes with; None: it has the reference encoder.

    Raises:
        ConfigError: as `Checkpoint.open`.
    """
    if config.encoder.kind == "reference":
        return None
    if not config.encoder.path:
        raise ConfigError(FIELD, "", "must be the folder of a checkpoint: encoder.kind is hf")
    return Checkpoint.open(Path(config.encoder.path))


def frame_sizes(config: ServiceConfig) -> Sizes | None:
    """Return how large frames of videos are for a service's checkpoint; None: it has none that takes them.

    Raises:
        ConfigError: as `Checkpoint.open`.
    """
    checkpoint = checkpoint_of(config)
    counting = None if checkpoint is None else checkpoint.countings.get("video")
    if checkpoint is None or not isinstance(counting, (FrameGrid, WholeClip)):
        return None
    return counting.sizes(checkpoint.processors["video"])


def frames_of_slice(config: ServiceConfig) -> int:
    """Return how many frames of a video an encoder is given together. Raises ConfigError as `checkpoint_of`."""
    checkpoint = checkpoint_of(config)
    counting = None if checkpoint is None else checkpoint.countings.get("video")
    if checkpoint is None or not isinstance(counting, (FrameGrid, WholeClip)):
        return 2
    return counting.num_frames(checkpoint.model)


def window_samples(config: ServiceConfig) -> int:
    """Return the samples of a window of a sound, at 16,000 a second. Raises ConfigError as `checkpoint_of`."""
    checkpoint = checkpoint_of(config)
    counting = None if checkpoint is None else checkpoint.countings.get("audio")
    if checkpoint is None or not isinstance(counting, (Filled, Chunked)):
        return config.model.audio_frame * config.model.audio_window
    return counting.window(checkpoint.model, checkpoint.processors["audio"])


def max_embeds_per_item(config: ServiceConfig) -> int:
    """Return how many embeddings the largest item of a service has, whatever its modality.

    Raises ConfigError as `checkpoint_of`.
    """
    checkpoint = checkpoint_of(config)
    if checkpoint is not None:
        return checkpoint.max_embeds_per_item
    model = config.model
    return max(model.max_patches_per_image, model.audio_window)  # a slice of a video has as many as an image


def check_encoder(config: ServiceConfig) -> None:
    """Refuse what cannot be served, before a process is started.

    Raises:
        ConfigError: as `checkpoint_of`; or a package is not installed.
    """
    checkpoint = checkpoint_of(config)
    if checkpoint is not None:
        check_packages()
        if not any(modality == "image" or decoder_of(modality) for modality in checkpoint.countings):
            install = how_to_install(*(EXTRAS[modality] for modality in checkpoint.countings))
            reason = f"{checkpoint.architecture} takes what cannot be decoded here: {install}"
            raise ConfigError(FIELD, str(checkpoint.path), reason)
    if config.encoder.ray_address and find_spec("ray") is None:
        reason = f"needs ray, not installed: {how_to_install('ray')}"
        raise ConfigError("encoder.ray_address", config.encoder.ray_address, reason)


def check_packages() -> None:
    """Raise ConfigError if a package of the extra is not installed."""
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        reason = f"needs {' and '.join(missing)}, not installed: {how_to_install('hf')}"
        raise ConfigError("encoder.kind", "hf", reason)


def library_versions() -> dict[str, str]:
    """Return the version of each package that computes a processed image or its encoding; "" if it is not installed."""
    return {name: found or "" for name, found in package_versions(_PACKAGES).items()}


def _processor_of(path: Path, modality: Modality) -> Mapping[str, Any]:
    settings = _settings_of(path, modality)
    for name, value in _NEEDED.get(modality, {}).items():
        if settings.get(name, value) != value:
            found = f"{path}: {name} is {settings[name]}"
            raise ConfigError(FIELD, found, f"of a {_SECTIONS[modality].replace('_', ' ')} it must be {value}")
    return settings


def _settings_of(path: Path, modality: Modality) -> Mapping[str, Any]:
    section = _SECTIONS[modality]
    if (path / _WHOLE).exists() and (settings := _json_of(path / _WHOLE).get(section)):
        return dict(settings)
    for name in _FILES[modality]:
        if (path / name).exists():
            settings = _json_of(path / name)
            return dict(settings.get(section, settings))
    files = " or ".join((*_FILES[modality], _WHOLE))
    raise ConfigError(FIELD, str(path), f"has no {section.replace('_', ' ')} ({files})")


def _json_of(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(FIELD, str(file), f"cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(FIELD, str(file), "is no JSON") from error
    if not isinstance(value, dict):
        raise ConfigError(FIELD, str(file), "is no JSON object")
    return value
