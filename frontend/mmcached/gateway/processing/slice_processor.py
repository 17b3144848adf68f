"""Makes the item that the encoder takes of a decoded slice of a clip.

    two frames of a video      -> {"frames": uint8 (num_patches, 2 * 3 * patch_size**2), "grid": int64 (2,)}
    a window of a sound        -> {"samples": int16 (num_frames, audio_frame)}

Both frames of a video are cut like an image, see `processor`; a row holds the patches of both at one place of the grid,
the earlier one first. Samples are clipped to -1 … 1 and rounded to 16 bits, and silence fills the last frame of a
sound. Each row becomes one embedding. For a checkpoint's towers see `checkpoint_slices`.

Invariant: the same slice and the same fingerprint give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mmcached.cache.checkpoints.checkpoint import checkpoint_of
from mmcached.clips.settings import MAX_CHANNELS, MAX_STREAMS
from mmcached.clips.versions import EXTRAS, decoder_of
from mmcached.gateway.processing.checkpoint_slices import CheckpointSlices
from mmcached.gateway.processing.processor import GatewayItem, cut_patches
from mmcached.shm.store.codec import encode
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ClipTooLarge, CorruptClip, InvalidRequest, InvariantError
from mmcached.wire.extras import how_to_install
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.vocabulary import Modality

_VERSION = 1
"""Increase it with every change here that gives other bytes for some slice."""

_FULL_SCALE = 32_768


@dataclass(frozen=True, slots=True)
class SlicePlace:
    """Position of a slice in its file, in frames or samples and in seconds.

    Attributes:
        place: Numbers that identify it: its frames and their size, or its samples.
    """

    place: tuple[int, ...]
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class DecodedSlice:
    """Decoded content of a slice: `frames`, uint8 (num_frames, height, width, 3), or `samples`, float32 (n,).

    Attributes:
        index: Of the slice in the plan of its clip.
        start_s, end_s: As in the plan.
        seconds: How long its decoder took.
    """

    index: int
    start_s: float
    end_s: float
    arrays: Mapping[str, npt.NDArray[Any]]
    seconds: float = field(default=0.0, compare=False)


class SliceProcessor:
    """Processes slices of the modalities that a service takes. Stateless: any thread may call it.

    Attributes:
        fingerprints: By modality, all settings of the result beside the file, decoder included; "" if not taken.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._model = config.model
        self._limits = config.limits
        checkpoint = checkpoint_of(config)
        self._checkpoint = None if checkpoint is None else CheckpointSlices(checkpoint)
        self.fingerprints: dict[Modality, str] = {
            "video": self._fingerprint("video"),
            "audio": self._fingerprint("audio"),
        }

    def check(self, options: ClipOptions, field: str) -> None:
        """Raise the errors of a clip's options, before its file is opened.

        Raises:
            InvalidRequest: The modality is not taken, or an option is invalid; names the option.
            ClipTooLarge: More seconds or frames than the service accepts.
        """
        if not self.fingerprints[options.modality]:
            raise InvalidRequest(field, options.modality, self._why_none(options.modality))
        if self._checkpoint is not None:
            self._checkpoint.check(options, field)
        _check_window(options, self._limits, field)
        _check_frames(options, self._limits, field)

    def item(self, decoded: DecodedSlice, modality: Modality) -> GatewayItem:
        """Return the item of a slice.

        Raises:
            CorruptClip: A sample is not a number.
            InvariantError: A decoder has returned anything other than a slice.
        """
        if self._checkpoint is not None:
            return self._checkpoint.item(decoded.arrays, modality)
        if modality == "video":
            record, limit = self._cut(decoded.arrays["frames"]), self._model.max_patches_per_image
        else:
            record, limit = self._round(decoded.arrays["samples"]), self._model.audio_window
        num_embeds = len(next(iter(record.values())))
        if not 1 <= num_embeds <= limit:
            raise InvariantError(f"a decoder made a slice of {num_embeds} embeddings, at most {limit} are possible")
        return GatewayItem(encode(record), num_embeds)

    def _fingerprint(self, modality: Modality) -> str:
        decoder, settings, limits = decoder_of(modality), self._settings(modality), self._limits
        if not (decoder and settings):
            return ""
        if modality == "video":
            most = f"{limits.max_frame_pixels} pixels, {limits.max_clip_frames} frames"
        else:
            most = f"{MAX_CHANNELS} channels"
        # A file that one service refuses must not be answered from another service's cache.
        most += f", {limits.max_clip_s} s, {MAX_STREAMS} streams, {limits.max_clip_mb} MiB"
        return f"mmcached {modality} {_VERSION}; {settings}; {most}; {decoder}"

    def _settings(self, modality: Modality) -> str:
        """Return all settings of the result beside the decoder; "" if no encoder takes the modality."""
        model = self._model
        if self._checkpoint is not None:
            return self._checkpoint.settings(modality)
        if modality == "video":
            return f"patch {model.patch_size}, at most {model.max_patches_per_image}"
        return f"{model.audio_window} frames of {model.audio_frame}"

    def _why_none(self, modality: Modality) -> str:
        if not self._settings(modality):
            return "none: the service's checkpoint does not encode it"
        return f"none: the service cannot decode it; it needs {how_to_install(EXTRAS[modality])}"

    def _cut(self, frames: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        patch, (_, height, width, _) = self._model.patch_size, frames.shape
        if height % patch or width % patch or frames.dtype != np.uint8:
            raise InvariantError(f"a decoder made frames of {width} x {height} {frames.dtype}, the patch is {patch}")
        both = np.concatenate([cut_patches(frame, patch) for frame in frames], axis=1)
        return {"frames": both, "grid": np.array([height // patch, width // patch], dtype=np.int64)}

    def _round(self, samples: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        if not np.isfinite(samples).all():
            raise CorruptClip("audio", "a sample that is no number", "a sound has finite samples")
        scaled = np.clip(samples, -1.0, 1.0) * np.float32(_FULL_SCALE)
        rounded = np.minimum(np.rint(scaled), _FULL_SCALE - 1)
        framed = np.zeros((math.ceil(len(samples) / self._model.audio_frame), self._model.audio_frame), np.int16)
        framed.reshape(-1)[: len(samples)] = rounded
        return {"samples": framed}


def _check_window(options: ClipOptions, limits: LimitsConfig, field: str) -> None:
    if options.end_s is None:
        return
    if options.end_s <= options.start_s:
        raise InvalidRequest(f"{field}.end_s", options.end_s, f"must be more than start_s, {options.start_s}")
    seconds = options.end_s - options.start_s
    if seconds > limits.max_clip_s:
        limit = f"at most {limits.max_clip_s} s of a clip (limits.max_clip_s)"
        raise ClipTooLarge(f"{field}.end_s", f"{seconds:g} s after start_s", limit)


def _check_frames(options: ClipOptions, limits: LimitsConfig, field: str) -> None:
    given = {name: value for name in ("fps", "num_frames") if (value := getattr(options, name)) is not None}
    if options.modality == "audio" and given:
        name, value = given.popitem()
        raise InvalidRequest(f"{field}.{name}", value, "a sound has no frames to choose")
    if options.modality == "video" and len(given) != 1:
        raise InvalidRequest(f"{field}.fps", options.fps or "none", "a video has either fps or num_frames")
    num_frames = options.num_frames or 0
    if options.fps is not None and options.end_s is not None:
        num_frames = math.floor(options.fps * (options.end_s - options.start_s))
    if num_frames > limits.max_clip_frames:
        name = next(iter(given))
        limit = f"at most {limits.max_clip_frames} frames of a video (limits.max_clip_frames)"
        raise ClipTooLarge(f"{field}.{name}", f"{num_frames} frames", limit)
