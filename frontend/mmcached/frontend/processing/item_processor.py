"""Checks an image and finds its key before any cache is asked, and makes its item of the decoded pixels.

An image that its client names has the key of that name: the file is not hashed, and need not even come. The name stands
for one content. A file that comes with a name which is cached is not looked at; other content takes another name, or a
flush before it.

Knows nothing of requests, threads or caches. Stateless, so any thread may call it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.cache.checkpoints.checkpoint import checkpoint_of
from mmcached.cache.hasher import MultiModalHasher
from mmcached.frontend.processing.checkpoint_processor import CheckpointProcessor
from mmcached.frontend.processing.decoder_process import Pixels, Tensors
from mmcached.frontend.processing.processor import MODALITY, ImageProcessor, Processed
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import EmptyImage, ImageTooLarge, InvalidRequest


def field_of(index: int) -> str:
    """Return how errors call an image of a request."""
    return f"images[{index}]"


class Processing:
    """Checks, keys and items of one service.

    Attributes:
        fingerprint: what the keys of items depend on beside their files.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._max_bytes = config.max_image_bytes
        self._processor = _processor_of(config)
        self.fingerprint = self._processor.fingerprint
        self._hasher = MultiModalHasher(config.mm_hasher_algorithm)

    def check(self, images: Sequence[bytes], image_ids: Sequence[str | None]) -> None:
        """Refuse what can be refused without looking into the files.

        Args:
            image_ids: one per image; an image with an id may be empty.
        Raises:
            InvalidRequest: another number of ids than of images.
            EmptyImage, ImageTooLarge: name the image.
        """
        if len(image_ids) != len(images):
            raise InvalidRequest("image_ids", len(image_ids), f"{len(images)} image(s) came: one id, or none, for each")
        for index, (data, image_id) in enumerate(zip(images, image_ids, strict=True)):
            if data or image_id is None:
                _check_file(data, self._max_bytes, field_of(index))

    def key(self, data: bytes, tenant: str) -> str:
        """Return the content key of an encoded image, without decoding it."""
        return self._hasher.item_key(data, modality=MODALITY, fingerprint=self.fingerprint, tenant=tenant)

    def key_of_id(self, image_id: str, tenant: str, *, index: int) -> str:
        """Return the key of an image that its client names.

        Raises:
            InvalidRequest: no id has that length; names the image's index.
        """
        try:
            return self._hasher.caller_key(image_id, modality=MODALITY, fingerprint=self.fingerprint, tenant=tenant)
        except InvalidRequest as error:
            details = error.details
            raise InvalidRequest(f"image_ids[{index}]", details["value"], str(details["limit"])) from None

    def item(self, made: Pixels | Tensors) -> Processed:
        return self._processor.item(made)


def _processor_of(config: ServiceConfig) -> ImageProcessor | CheckpointProcessor:
    checkpoint = checkpoint_of(config)
    if checkpoint is None:
        return ImageProcessor(config.model, config.max_image_pixels, config.max_image_bytes)
    return CheckpointProcessor(checkpoint, f"{config.max_image_pixels} pixels, {config.max_image_bytes} bytes")


def _check_file(data: bytes, max_bytes: int, field: str) -> None:
    if not data:
        raise EmptyImage(field, 0, "an image has bytes")
    if len(data) > max_bytes:
        raise ImageTooLarge(field, f"{len(data)} bytes", f"at most {max_bytes} bytes")
