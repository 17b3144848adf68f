"""Holds the settings of a service's decoders: the limits of a picture, and the size that it is scaled to."""

from __future__ import annotations

import msgspec

from mmcached.wire.config import MIB, ServiceConfig


class PictureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one picture, and its grid.

    Attributes:
        patch_size: side of a patch, pixels.
        max_pixels: width x height of the file.
        max_aspect_ratio: longer side / shorter side.
        max_parts: chunks of a PNG file, segments of a JPEG file.
        cpu_s: CPU seconds for one picture.
        memory_bytes: of a decoder, beyond what it has when it is ready.
        processor_folder: of the checkpoint whose image processor is run; "": none, the picture is scaled to its grid.
    """

    patch_size: int
    max_patches: int
    max_pixels: int
    max_aspect_ratio: int
    max_jpeg_scans: int
    max_parts: int
    cpu_s: float
    memory_bytes: int
    processor_folder: str = ""

    @classmethod
    def from_config(cls, config: ServiceConfig) -> PictureSettings:
        limits = config.limits
        return cls(
            patch_size=config.model.patch_size,
            max_patches=config.model.max_patches_per_image,
            max_pixels=config.max_image_pixels,
            max_aspect_ratio=limits.max_image_aspect_ratio,
            max_jpeg_scans=limits.max_jpeg_scans,
            max_parts=limits.max_image_parts,
            cpu_s=limits.image_cpu_s,
            memory_bytes=limits.image_memory_mb * MIB,
            processor_folder=config.encoder.path if config.encoder.kind == "hf" else "",
        )
