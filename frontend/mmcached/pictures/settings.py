"""The settings of a service's image decoders: limits, and the size to scale to."""

from __future__ import annotations

import msgspec

from mmcached.wire.config import MIB, ServiceConfig


class PictureSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of one image, and its grid.

    Attributes:
        patch_size: Side of a patch in pixels.
        max_pixels: Width x height of the file.
        max_aspect_ratio: Longer side / shorter side.
        max_parts: Chunks of a PNG file, segments of a JPEG file.
        cpu_s: CPU seconds for one image.
        memory_bytes: Memory of a decoder in addition to that when it is ready.
        processor_folder: Folder of the checkpoint whose image processor is run; "" to scale the image to its grid.
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
