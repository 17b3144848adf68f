"""The settings of a service's decoders of clips: limits, and the form of slices."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmcached.clips.frame_sizes import Sizes
from mmcached.wire.config import MIB, ServiceConfig


class ClipSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one clip, and the form of its slices.

    Attributes:
        modality: Modality of all clips of a decoder.
        patch_size: Side of a frame's patch in pixels.
        max_patches: Patches of one frame.
        sizes: Frame sizes of a checkpoint's encoder; None: by `patch_size` and `max_patches`.
        num_frames: Frames of a slice of a video.
        window_samples: Samples of a slice of a sound, at 16,000 a second.
        max_s: Seconds from the file's beginning to the end of the wanted part.
        max_frames: Sampled frames of a video.
        max_frame_pixels: Width x height of a video.
        max_streams: Streams of a file.
        max_channels: Channels of a sound.
        cpu_s: CPU seconds for one clip.
        memory_bytes: Memory of a decoder in addition to that when it is ready.
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
        """The number of pixels of which both sides of a scaled frame are multiples."""
        return self.patch_size if self.sizes is None else self.sizes.side

    @property
    def max_scaled_pixels(self) -> int:
        """The most pixels of a scaled frame."""
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
        """Return the settings of a service; a checkpoint's encoder has its own sizes and windows."""
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
