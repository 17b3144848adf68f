"""Checks a file and computes its key before any cache lookup; makes items of decoded files.

An image that its client names has the key of that name: the file is not hashed and may be empty. A name stands for one
content: a file that comes with a cached name is not read. New content needs another name, or a flush before it.

Stateless: any thread may call it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from mmcached.cache.checkpoints.checkpoint import checkpoint_of
from mmcached.cache.clip_keys import clip_key, file_key, slice_record
from mmcached.cache.hasher import MultiModalHasher
from mmcached.gateway.processing.checkpoint_processor import CheckpointProcessor
from mmcached.gateway.processing.decoder_process import DecodedTensors, Pixels
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.processor import GatewayItem, ImageProcessor
from mmcached.gateway.processing.slice_processor import DecodedSlice, SliceProcessor
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import ClipTooLarge, EmptyClip, EmptyImage, ImageTooLarge, InvalidRequest
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import Modality


class Processing:
    """Checks, keys and items of one service.

    Attributes:
        fingerprints: By modality, the settings that item keys depend on beside the file; "" if it is not taken.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self._max_bytes = config.max_image_bytes
        self._max_clip_bytes = config.limits.max_clip_mb * MIB
        self._processor = _processor_of(config)
        self._slices = SliceProcessor(config)
        self.fingerprints: Mapping[Modality, str] = {
            "image": self._processor.fingerprint,
            **self._slices.fingerprints,
        }
        self._hasher = MultiModalHasher(config.mm_hasher_algorithm)

    def check(self, medium: Medium) -> None:
        """Raise the errors that can be found without reading the file; it may be empty if its name or digest came.

        Raises:
            InvalidRequest: The modality is not taken, or an option is invalid.
            EmptyImage, ImageTooLarge, EmptyClip, ClipTooLarge: Name the file.
        """
        if medium.options is not None:
            self._slices.check(medium.options, medium.field)
            if not medium.content:
                _check_clip(medium.data, self._max_clip_bytes, medium.field)
        elif not self.fingerprints["image"]:
            raise InvalidRequest(medium.field, "image", "none: the service's checkpoint does not encode it")
        elif medium.data or (medium.name is None and not medium.content):
            _check_image(medium.data, self._max_bytes, medium.field)

    def keys(self, medium: Medium, tenant: str) -> tuple[str, str]:
        """Return the key of a file, and the key of the file with its options, without decoding it."""
        fingerprint = self.fingerprints[medium.modality]
        content = medium.content or self._hasher.content_digest(medium.data)
        if medium.options is None:
            key = self._hasher.item_key(content, modality="image", fingerprint=fingerprint, tenant=tenant)
            return key, key
        key = file_key(self._hasher, content, medium.options, fingerprint=fingerprint, tenant=tenant)
        return key, clip_key(self._hasher, key, medium.options)

    def key_of_name(self, medium: Medium, tenant: str) -> str:
        """Return the key of an image that its client names.

        Raises:
            InvalidRequest: The id is too short or too long; names the image's index.
        """
        try:
            return self._hasher.caller_key(
                medium.name or "", modality="image", fingerprint=self.fingerprints["image"], tenant=tenant
            )
        except InvalidRequest as error:
            field = medium.field.replace("images", "image_ids")
            raise InvalidRequest(field, error.details["value"], str(error.details["limit"])) from None

    def slice_record(self, key_of_file: str, place: tuple[int, ...]) -> str:
        """Return the store key of the record with the content key of the slice at a place of a file."""
        return slice_record(self._hasher, key_of_file, place)

    def item(self, made: Pixels | DecodedTensors) -> GatewayItem:
        started = time.monotonic()
        item = self._processor.item(made)
        return item._replace(cost_s=made.seconds + time.monotonic() - started)

    def slice_item(self, decoded: DecodedSlice, modality: Modality, tenant: str) -> tuple[str, GatewayItem]:
        started = time.monotonic()
        key = self._hasher.hash_kwargs(
            modality=modality, fingerprint=self.fingerprints[modality], tenant=tenant, content=dict(decoded.arrays)
        )
        item = self._slices.item(decoded, modality)
        return key, item._replace(cost_s=decoded.seconds + time.monotonic() - started)


def _processor_of(config: ServiceConfig) -> ImageProcessor | CheckpointProcessor:
    checkpoint = checkpoint_of(config)
    if checkpoint is None:
        return ImageProcessor(config.model, config.max_image_pixels, config.max_image_bytes)
    return CheckpointProcessor(checkpoint, f"{config.max_image_pixels} pixels, {config.max_image_bytes} bytes")


def _check_clip(data: Frame, max_bytes: int, field: str) -> None:
    if not data:
        raise EmptyClip(field, 0, "a video or a sound has bytes")
    if len(data) > max_bytes:
        raise ClipTooLarge(field, f"{len(data)} bytes", f"at most {max_bytes} bytes (limits.max_clip_mb)")


def _check_image(data: Frame, max_bytes: int, field: str) -> None:
    if not data:
        raise EmptyImage(field, 0, "an image has bytes")
    if len(data) > max_bytes:
        raise ImageTooLarge(field, f"{len(data)} bytes", f"at most {max_bytes} bytes")
