"""What is done to an image before any cache is asked, and after one has missed: its key, and its processed item.

Counts what it processes: the work that the processor cache saves.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.cache import MultiModalKwargsItem, ResolvedPromptUpdate
from mmcached.frontend.hasher import MultiModalHasher
from mmcached.frontend.processor import ImageProcessor
from mmcached.wire.config import ServiceConfig

Processed = tuple[MultiModalKwargsItem, Sequence[ResolvedPromptUpdate]]


class Processing:
    """One processor and one hasher. `num_processed` only rises."""

    def __init__(self, config: ServiceConfig) -> None:
        self._processor = ImageProcessor(config.model, config.max_image_pixels, config.max_image_bytes)
        self._hasher = MultiModalHasher()
        self.num_processed = 0

    def keys(self, images: Sequence[bytes], tenant: str) -> list[str]:
        """Return the content key of each encoded image, without decoding it."""
        fingerprint = self._processor.fingerprint
        return [
            self._hasher.item_key(data, modality="image", fingerprint=fingerprint, tenant=tenant) for data in images
        ]

    def process(self, images: Sequence[bytes], index: int) -> Processed:
        """Decode and cut one image of a request.

        Raises:
            InvalidRequest: (a subclass) names `images[index]`, the value and the limit.
        """
        processed = self._processor.process(images[index], f"images[{index}]")
        self.num_processed += 1
        return processed
