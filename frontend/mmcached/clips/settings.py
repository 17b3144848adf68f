"""Holds the settings of a service's decoders of clips: the limits of a clip, and the size of what is made of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmcached.clips.frame_sizes import Sizes
from mmcached.wire.config import MIB, ServiceConfig


class ClipSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one clip, and the form of its slices.

    Attributes:
        modality: of all clips that a decoder gets.
        patch_size: side of a patch of a frame, pixels.
        max_patches: of one frame.
        sizes: of frames for a checkpoint's encoder; None: the two above say them.
        num_frames: of a slice of a video.
        window_samples: of a slice of a sound, at 16,000 a second.
        max_s: seconds from the file's beginning to the end of what is wanted of it.
        max_frames: frames that are taken of a video.
        max_frame_pixels: width x height of a video.
        max_streams: of a file.
        max_channels: of a sound.
        cpu_s: CPU seconds for one clip.
        memory_bytes: of a decoder, beyond what it has when it is ready.
    """

    modality: Literal["video", "audio"]
    patch_size: int
    max_patches: int
    sizes: Sizes | None
    num_frames: int
    window_samples: int
    max_s: float
    max_frames: int
    max_frame_pixels: int
    max_streams: int
    max_channels: int
    cpu_s: float
    memory_bytes: int

    @property
    def side(self) -> int:
        """What both sides of a scaled frame are multiples of, pixels."""
        return self.patch_size if self.sizes is None else self.sizes.side

    @property
    def max_scaled_pixels(self) -> int:
        """Pixels of a scaled frame."""
        return self.patch_size**2 * self.max_patches if self.sizes is None else self.sizes.max_pixels

    @classmethod
    def from_config(
        cls,
        config: ServiceConfig,
        modality: Literal["video", "audio"],
        *,
        sizes: Sizes | None = None,
        num_frames: int = 2,
        window_samples: int | None = None,
    ) -> ClipSettings:
        """Return the settings of a service; a checkpoint's encoder has sizes and windows of its own."""
        model, limits = config.model, config.limits
        return cls(
            modality=modality,
            patch_size=model.patch_size,
            max_patches=model.max_patches_per_image,
            sizes=sizes,
            num_frames=num_frames,
            window_samples=window_samples or model.audio_frame * model.audio_window,
            max_s=limits.max_clip_s,
            max_frames=limits.max_clip_frames,
            max_frame_pixels=limits.max_frame_pixels,
            max_streams=limits.max_clip_streams,
            max_channels=limits.max_audio_channels,
            cpu_s=limits.clip_cpu_s,
            memory_bytes=limits.clip_memory_mb * MIB,
        )
