"""What a decoder makes of a file, without the process: for tests of what is done with it."""

from __future__ import annotations

import threading
from functools import partial

from mmcached.gateway.processing.decoder_process import Pixels
from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.processor import GatewayItem
from mmcached.pictures.grid import scaled_size
from mmcached.pictures.images import decode_image
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import ModelConfig

_one_at_a_time = threading.Lock()
"""A decoder has one thread, and its warning filters for itself."""


def pixels_of(data: bytes, settings: PictureSettings, field: str = "image") -> Pixels:
    size = partial(scaled_size, patch_size=settings.patch_size, max_patches=settings.max_patches)
    with _one_at_a_time:
        image = decode_image(data, settings, field=field, scaled_size=size)
    return Pixels(*image.size, image.tobytes())


def item_of(data: bytes, model: ModelConfig | None = None) -> GatewayItem:
    config = ServiceConfig(model=model or ModelConfig())
    return Processing(config).item(pixels_of(data, PictureSettings.from_config(config)))
