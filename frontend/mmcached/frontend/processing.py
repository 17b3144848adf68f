"""What is done to an image before any cache is asked, and after one has missed: limits, key, processed item.

Knows nothing of requests, threads or caches. Stateless, so any thread may call it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.cache import MultiModalKwargsItem, ResolvedPromptUpdate
from mmcached.frontend.hasher import MultiModalHasher
from mmcached.frontend.images import check_file
from mmcached.frontend.processor import MODALITY, ImageProcessor
from mmcached.wire.config import ServiceConfig

Processed = tuple[MultiModalKwargsItem, Sequence[ResolvedPromptUpdate]]


def field_of(index: int) -> str:
    """Return how errors call an image of a request."""
    return f"images[{index}]"


class Processing:
    """One processor and one hasher."""

    def __init__(self, config: ServiceConfig) -> None:
        self._max_bytes = config.max_image_bytes
        self._processor = ImageProcessor(config.model, config.max_image_pixels, config.max_image_bytes)
        self._fingerprint = self._processor.fingerprint
        self._hasher = MultiModalHasher()

    def check(self, images: Sequence[bytes]) -> None:
        """Refuse what can be refused without looking into the files.

        Raises:
            EmptyImage, ImageTooLarge: name the image.
        """
        for index, data in enumerate(images):
            check_file(data, max_bytes=self._max_bytes, field=field_of(index))

    def key(self, data: bytes, tenant: str) -> str:
        """Return the content key of an encoded image, without decoding it."""
        return self._hasher.item_key(data, modality=MODALITY, fingerprint=self._fingerprint, tenant=tenant)

    def process(self, data: bytes) -> Processed:
        """Decode and cut an image.

        Raises:
            InvalidRequest: (a subclass) calls it "image": requests that wait for one file may count it differently.
        """
        return self._processor.process(data, MODALITY)
