"""Cuts scaled pixels into the item that the vision encoder takes: the square patches of a grid.

    one patch, one row of pixel_values: channel, then row, then column           (3, 32, 32) flattened

The item's record is `{"pixel_values": uint8 (num_patches, 3 * patch_size**2), "grid": int64 (2,)}`: patches row by row,
and the number of rows and columns. Every patch becomes one embedding, so `num_patches` placeholders replace the image's
marker. A decoder makes the pixels, see `mmcached.pictures`.

Invariant: the same file and the same fingerprint give the same bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import PIL

from mmcached.gateway.processing.decoder_process import DecodedTensors, Pixels
from mmcached.shm.store.codec import EncodedRecord, encode
from mmcached.wire.errors import InvariantError
from mmcached.wire.model_config import ModelConfig

_VERSION = 2
"""Increase it with every change, here or in `mmcached.pictures`, that gives other bytes for some file."""


class GatewayItem(NamedTuple):
    """One processed item, as it is cached and sent: its record, and its number of embeddings.

    Attributes:
        cost_s: Seconds that decoding and processing it took; 0.0: unknown.
    """

    encoded: EncodedRecord
    num_embeds: int
    cost_s: float = 0.0


class ImageProcessor:
    """Turns pixels into items; `max_pixels` and `max_bytes` limit a file. Stateless: any thread may call it."""

    def __init__(self, model: ModelConfig, max_pixels: int, max_bytes: int) -> None:
        self._patch_size = model.patch_size
        self._max_patches = model.max_patches_per_image
        self._max_pixels = max_pixels
        self._max_bytes = max_bytes

    @property
    def fingerprint(self) -> str:
        """Hash input of the item's key beside the file: all settings of the result."""
        settings = f"patch {self._patch_size}, at most {self._max_patches}"
        limits = f"{self._max_pixels} pixels, {self._max_bytes} bytes"
        return f"mmcached image {_VERSION}; {settings}; {limits}; Pillow {PIL.__version__}"

    def item(self, pixels: Pixels | DecodedTensors) -> GatewayItem:
        """Cut a picture whose sides are multiples of the patch size."""
        if isinstance(pixels, DecodedTensors):
            raise InvariantError("a decoder without an image processor made tensors")
        image = np.frombuffer(pixels.data, dtype=np.uint8).reshape(pixels.height, pixels.width, 3)
        patches = cut_patches(image, self._patch_size)
        grid = np.array([pixels.height // self._patch_size, pixels.width // self._patch_size], dtype=np.int64)
        return GatewayItem(encode({"pixel_values": patches, "grid": grid}), len(patches))


Bytes2D = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Bytes3D = np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]


def cut_patches(pixels: Bytes3D, patch_size: int) -> Bytes2D:
    """Return the patches of `(height, width, 3)` pixels: `(num_patches, 3 * patch_size**2)`."""
    rows, columns = pixels.shape[0] // patch_size, pixels.shape[1] // patch_size
    tiles = pixels.reshape(rows, patch_size, columns, patch_size, 3).transpose(0, 2, 4, 1, 3)
    return np.ascontiguousarray(tiles).reshape(rows * columns, 3 * patch_size**2)
