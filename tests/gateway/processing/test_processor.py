"""From a file to patches: the grid follows the picture, the bytes are the same every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from mmcached.gateway.processing.processor import GatewayItem, ImageProcessor, cut_patches
from mmcached.shm.store.codec import decode_record_frames
from mmcached.wire.model_config import ModelConfig
from tests.gateway.in_process import item_of
from tests.gateway.pictures import PHOTOGRAPHS, encode, noise, photograph, plain

MODEL = ModelConfig(patch_size=16, max_patches_per_image=64)


def processor(model: ModelConfig = MODEL) -> ImageProcessor:
    return ImageProcessor(model, max_pixels=64_000_000, max_bytes=64 << 20)


def process(data: bytes) -> GatewayItem:
    return item_of(data, MODEL)


def arrays(item: GatewayItem) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    record = decode_record_frames(item.encoded.frames(), tensors="numpy")
    assert set(record) == {"pixel_values", "grid"}
    pixels, grid = record["pixel_values"], record["grid"]
    assert isinstance(pixels, np.ndarray)
    assert isinstance(grid, np.ndarray)
    return pixels, grid


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs(name: str) -> None:
    item = process(photograph(name))
    pixels, grid = arrays(item)
    rows, columns = map(int, grid)
    assert pixels.dtype == np.uint8
    assert grid.dtype == np.int64
    assert pixels.flags.c_contiguous
    assert pixels.shape == (rows * columns, 3 * 16**2)
    assert 32 <= rows * columns <= 64
    assert item.num_embeds == rows * columns
    again = process(photograph(name))
    assert list(map(bytes, again.encoded.frames())) == list(map(bytes, item.encoded.frames()))


def test_the_number_of_patches_follows_the_size() -> None:
    def num_patches(width: int, height: int) -> int:
        return process(plain(width, height)).num_embeds

    assert [num_patches(*size) for size in ((1, 1), (16, 16), (32, 16), (48, 48), (128, 128), (1000, 1000))] == [
        1,
        1,
        2,
        9,
        64,
        64,
    ]


def test_patches_are_the_pixels_in_order() -> None:
    """A picture of the grid's exact size is not resampled: patch by patch, channel by channel, its own pixels."""
    image = noise(48, 32)
    item = process(encode(image))
    pixels, grid = arrays(item)
    assert grid.tolist() == [2, 3]
    patches = pixels.reshape(2, 3, 3, 16, 16)
    source = np.asarray(image)
    for row in range(2):
        for column in range(3):
            tile = source[row * 16 : row * 16 + 16, column * 16 : column * 16 + 16]
            assert np.array_equal(patches[row, column], tile.transpose(2, 0, 1))


def test_scaling_is_bicubic() -> None:
    image = noise(50, 30)
    item = process(encode(image))
    pixels, _ = arrays(item)
    assert np.array_equal(pixels, cut_patches(np.asarray(image.resize((48, 32), Image.Resampling.BICUBIC)), 16))


def test_orientation_decides_the_grid() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    item = process(encode(noise(64, 16), exif=exif))
    assert arrays(item)[1].tolist() == [4, 1]


def test_fingerprint_covers_what_decides_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [
        processor().fingerprint,
        processor(ModelConfig(patch_size=8, max_patches_per_image=64)).fingerprint,
        processor(ModelConfig(patch_size=16, max_patches_per_image=63)).fingerprint,
        ImageProcessor(MODEL, max_pixels=1, max_bytes=64 << 20).fingerprint,
        ImageProcessor(MODEL, max_pixels=64_000_000, max_bytes=1).fingerprint,
    ]
    assert seen[0] == processor(ModelConfig(patch_size=16, max_patches_per_image=64, seed=5)).fingerprint
    monkeypatch.setattr(PIL, "__version__", "0.0.0")
    seen.append(processor().fingerprint)
    monkeypatch.setattr("mmcached.gateway.processing.processor._VERSION", -1)
    seen.append(processor().fingerprint)
    assert len(set(seen)) == len(seen)
