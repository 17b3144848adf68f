"""From an image file to the item that the vision encoder takes: a grid of square patches that follows the image's form.

    640 x 400 px, patch 32, 64 patches at most    20 x 13 patches are too many    -> scaled to 10 x 6
    one patch, one row of pixel_values: channel, then row, then column           (3, 32, 32) flattened

The item's record is `{"pixel_values": uint8 (num_patches, 3 * patch_size**2), "grid": int64 (2,)}`: patches row by row,
and the number of rows and columns. Every patch becomes one embedding, so the image's marker is replaced by
`num_patches` placeholders.

Invariant: the same file and the same fingerprint give the same bytes.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
import PIL
from PIL import Image

from mmcached.cache import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    ResolvedPromptUpdate,
)
from mmcached.frontend.images import decode_image
from mmcached.wire.config import ModelConfig
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID

MODALITY = "image"
_VERSION = 1
"""Raise it with every change that gives other bytes for some file."""


class ImageProcessor:
    """Turns image files into items. Stateless, so any thread may call it.

    Args:
        model: gives the patch size and the limit of patches.
        max_pixels: limit of width x height of a file.
        max_bytes: limit of a file's size.
    """

    def __init__(self, model: ModelConfig, max_pixels: int, max_bytes: int) -> None:
        self._patch_size = model.patch_size
        self._max_patches = model.max_patches_per_image
        self._max_pixels = max_pixels
        self._max_bytes = max_bytes

    @property
    def fingerprint(self) -> str:
        """What decides the result beside the file: goes into the item's key."""
        settings = f"patch {self._patch_size}, at most {self._max_patches}"
        limits = f"{self._max_pixels} pixels, {self._max_bytes} bytes"
        return f"mmcached image {_VERSION}; {settings}; {limits}; Pillow {PIL.__version__}"

    def process(self, data: bytes, field: str) -> tuple[MultiModalKwargsItem, list[ResolvedPromptUpdate]]:
        """Decode, scale and cut an image.

        Args:
            data: the file.
            field: how errors call this image, as `images[1]`.

        Raises:
            EmptyImage, ImageTooLarge, CorruptImage: see `decode_image`.
        """
        image = decode_image(data, max_pixels=self._max_pixels, max_bytes=self._max_bytes, field=field)
        rows, columns = choose_grid(*image.size, patch_size=self._patch_size, max_patches=self._max_patches)
        size = (columns * self._patch_size, rows * self._patch_size)
        patches = cut_patches(image.resize(size, Image.Resampling.BICUBIC), self._patch_size)
        batched = MultiModalBatchedField()
        item = MultiModalKwargsItem(
            pixel_values=MultiModalFieldElem(patches, batched),
            grid=MultiModalFieldElem(np.array([rows, columns], dtype=np.int64), batched),
        )
        update = ResolvedPromptUpdate(MODALITY, target=IMAGE_TOKEN_ID, placeholder=IMAGE_TOKEN_ID, length=len(patches))
        return item, [update]


def choose_grid(width: int, height: int, *, patch_size: int, max_patches: int) -> tuple[int, int]:
    """Return `(rows, columns)` of patches for an image: its size rounded to patches, or scaled down to the limit.

    At least one by one, never more than the limit; integers only, so every machine chooses alike.

    >>> choose_grid(640, 400, patch_size=32, max_patches=64)
    (6, 10)
    >>> choose_grid(64, 33, patch_size=32, max_patches=64)
    (1, 2)
    >>> choose_grid(9000, 10, patch_size=32, max_patches=64)
    (1, 64)
    """
    rows = max(1, (2 * height + patch_size) // (2 * patch_size))
    columns = max(1, (2 * width + patch_size) // (2 * patch_size))
    if rows * columns <= max_patches:
        return rows, columns
    # floor(sqrt(limit * h / w)) * floor(sqrt(limit * w / h)) <= limit. Only where a side is lifted to 1 must the other
    # yield.
    rows = min(rows, max(1, isqrt(max_patches * height // width)))
    columns = min(columns, max(1, isqrt(max_patches * width // height)))
    return min(rows, max_patches // columns or 1), min(columns, max_patches)


def cut_patches(image: Image.Image, patch_size: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Return the patches of an RGB image whose sides are multiples of the patch: `(num_patches, 3 * patch_size**2)`."""
    pixels = np.asarray(image)
    rows, columns = pixels.shape[0] // patch_size, pixels.shape[1] // patch_size
    tiles = pixels.reshape(rows, patch_size, columns, patch_size, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles).reshape(rows * columns, 3 * patch_size**2)
