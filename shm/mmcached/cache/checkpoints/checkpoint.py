"""Reads the small files of a local checkpoint, and reports why it cannot be served before any process is started.

Does not read weights. The folder is trusted: it belongs to the operator, as the service does.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mmcached.cache.checkpoints.architectures import ARCHITECTURES, IN_PROMPTS
from mmcached.cache.checkpoints.counting import Counting, Tiled
from mmcached.cache.checkpoints.frames import FrameGrid, WholeClip
from mmcached.cache.checkpoints.json_files import json_of
from mmcached.cache.checkpoints.sounds import Chunked, Filled
from mmcached.clips.frame_sizes import Sizes
from mmcached.clips.versions import EXTRAS, decoder_of
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.extras import how_to_install, package_versions
from mmcached.wire.vocabulary import Modality

FIELD = "encoder.path"
EXTRA = ("transformers", "safetensors")
"""Packages of the extra `hf`, which a service with a checkpoint needs."""
PACKAGES = ("transformers", "torch", "torchvision", "numpy", "pillow")
"""Packages that compute a processed image or its encoding."""
_WHOLE = "processor_config.json"
_FILES: Mapping[Modality, tuple[str, ...]] = {
    "image": ("preprocessor_config.json",),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json"),
    "audio": ("preprocessor_config.json",),
}
"""Files with the settings of a modality's processor; the first existing one counts."""
_SECTIONS: Mapping[Modality, str] = {
    "image": "image_processor",
    "video": "video_processor",
    "audio": "feature_extractor",
}
"""Sections of the file that all processors may share."""
_NEEDED: Mapping[Modality, Mapping[str, Any]] = {
    "video": {"do_resize": True, "do_rescale": True, "do_normalize": True, "temporal_patch_size": 2},
    "audio": {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "sampling_rate": 16_000,
        "padding_value": 0.0,
        "dither": 0.0,
    },
}
"""Required values of settings: the service's own processing of slices supports no others."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint folder.

    Attributes:
        architecture: Class of Transformers that wrote it.
        model: Its configuration; of a model that also speaks, that of its thinker.
        processors: Settings of the processor of each modality.
        is_for_prompts: Whether its items are parts of prompts that the checkpoint continues.
    """

    path: Path
    architecture: str
    model: Mapping[str, Any]
    processors: Mapping[Modality, Mapping[str, Any]]
    is_for_prompts: bool = False

    @classmethod
    def open(cls, path: Path, *, is_for_prompts: bool = False) -> Checkpoint:
        """Read a folder.

        Raises:
            ConfigError: It is not a checkpoint of a known architecture with safetensors and its processors.
        """
        model = json_of(path / "config.json", FIELD)
        named = model.get("architectures") or [""]
        if named[0] not in ARCHITECTURES:
            raise ConfigError(FIELD, f"{path}: {named[0] or 'no architecture'}", f"one of {', '.join(ARCHITECTURES)}")
        if not any(path.glob("*.safetensors")):
            raise ConfigError(FIELD, str(path), "has no *.safetensors: other formats of weights are not read")
        processors = {modality: _processor_of(path, modality) for modality in ARCHITECTURES[named[0]]}
        return cls(path, named[0], model.get("thinker_config") or model, processors, is_for_prompts)

    @property
    def countings(self) -> Mapping[Modality, Counting]:
        found = IN_PROMPTS.get(self.architecture) if self.is_for_prompts else None
        return found or ARCHITECTURES[self.architecture]

    @property
    def has_tiles(self) -> bool:
        """Whether its tower encodes each tile of an item apart from the others."""
        return _are_tiled(self.countings)

    @property
    def max_embeds_per_item(self) -> int:
        return max(each.largest(self.model, self.processors[of]) for of, each in self.countings.items())

    def num_embeds(self, modality: Modality, tensors: Mapping[str, Any]) -> int:
        """Return the number of an item's embeddings by its tensors; InvalidRequest if they are not of one item."""
        return self.countings[modality].count(self.model, tensors)

    def modality_of(self, names: Container[str]) -> Modality:
        """Return the modality of an item with tensors of these names; by default the checkpoint's first modality."""
        of = {modality: each for modality, each in self.countings.items() if each.inputs[0] in names}
        return next(iter(of or self.countings))


def checkpoint_of(config: ServiceConfig) -> Checkpoint | None:
    """Return a service's checkpoint, None for the reference encoder.

    Raises:
        ConfigError: As `Checkpoint.open`; or tiles are to be cached, and the encoder has none.
    """
    if config.encoder.kind == "reference":
        if config.encoder.caches_tiles:
            raise ConfigError("encoder.caches_tiles", True, "must be false: encoder.kind is reference")
        return None
    if not config.encoder.path:
        raise ConfigError(FIELD, "", "must be the folder of a checkpoint: encoder.kind is hf")
    checkpoint = Checkpoint.open(Path(config.encoder.path), is_for_prompts=config.model.kind == "hf")
    if config.encoder.caches_tiles and not checkpoint.has_tiles:
        tiled = ", ".join(name for name, of in ARCHITECTURES.items() if _are_tiled(of))
        raise ConfigError("encoder.caches_tiles", True, f"must be false for {checkpoint.architecture}: only {tiled}")
    return checkpoint


def _are_tiled(countings: Mapping[Modality, Counting]) -> bool:
    return all(isinstance(each, Tiled) for each in countings.values())


def frame_sizes(config: ServiceConfig) -> Sizes | None:
    """Return the frame sizes of a checkpoint, None if it takes no videos; raises as `Checkpoint.open`."""
    checkpoint = checkpoint_of(config)
    counting = None if checkpoint is None else checkpoint.countings.get("video")
    if checkpoint is None or not isinstance(counting, (FrameGrid, WholeClip)):
        return None
    return counting.sizes(checkpoint.processors["video"])


def frames_of_slice(config: ServiceConfig) -> int:
    """Return the number of video frames per slice. Raises ConfigError as `checkpoint_of`."""
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
    """Return the number of embeddings of the largest item of any modality. Raises ConfigError as `checkpoint_of`."""
    checkpoint = checkpoint_of(config)
    if checkpoint is not None:
        return checkpoint.max_embeds_per_item
    model = config.model
    return max(model.max_patches_per_image, model.audio_window)  # a slice of a video has as many as an image


def check_encoder(config: ServiceConfig) -> None:
    """Refuse an encoder that cannot be served, before a process is started.

    Raises:
        ConfigError: As `checkpoint_of`; or a package is not installed.
    """
    checkpoint = checkpoint_of(config)
    if checkpoint is not None:
        check_packages()
        if not any(modality == "image" or decoder_of(modality) for modality in checkpoint.countings):
            install = how_to_install(*(EXTRAS[modality] for modality in checkpoint.countings))
            reason = f"no modality of {checkpoint.architecture} can be decoded here: {install}"
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
    return {name: found or "" for name, found in package_versions(PACKAGES).items()}


def _processor_of(path: Path, modality: Modality) -> Mapping[str, Any]:
    settings = _settings_of(path, modality)
    for name, value in _NEEDED.get(modality, {}).items():
        if settings.get(name, value) != value:
            found = f"{path}: {name} is {settings[name]}"
            raise ConfigError(FIELD, found, f"of a {_SECTIONS[modality].replace('_', ' ')} it must be {value}")
    return settings


def _settings_of(path: Path, modality: Modality) -> Mapping[str, Any]:
    section = _SECTIONS[modality]
    if (path / _WHOLE).exists() and (settings := json_of(path / _WHOLE, FIELD).get(section)):
        return dict(settings)
    for name in _FILES[modality]:
        if (path / name).exists():
            settings = json_of(path / name, FIELD)
            return dict(settings.get(section, settings))
    files = " or ".join((*_FILES[modality], _WHOLE))
    raise ConfigError(FIELD, str(path), f"has no {section.replace('_', ' ')} ({files})")
