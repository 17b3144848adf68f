"""From a file to patches: the grid follows the picture, the bytes are the same every time."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmcached.cache import MultiModalKwargsItem, ResolvedPromptUpdate
from mmcached.frontend.processor import ImageProcessor, choose_grid, cut_patches
from mmcached.wire.config import ModelConfig
from mmcached.wire.errors import CorruptImage, EmptyImage, ImageTooLarge
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID
from tests.frontend.pictures import PHOTOGRAPHS, encode, noise, photograph, plain, png_header

MODEL = ModelConfig(patch_size=16, max_patches_per_image=64)


def processor(model: ModelConfig = MODEL) -> ImageProcessor:
    return ImageProcessor(model, max_pixels=64_000_000, max_bytes=64 << 20)


def arrays(item: MultiModalKwargsItem) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    record = item.to_record()
    assert set(record) == {"pixel_values", "grid"}
    pixels, grid = record["pixel_values"], record["grid"]
    assert isinstance(pixels, np.ndarray)
    assert isinstance(grid, np.ndarray)
    return pixels, grid


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs(name: str) -> None:
    item, updates = processor().process(photograph(name), "images[0]")
    pixels, grid = arrays(item)
    rows, columns = map(int, grid)
    assert pixels.dtype == np.uint8
    assert grid.dtype == np.int64
    assert pixels.flags.c_contiguous
    assert pixels.shape == (rows * columns, 3 * 16**2)
    assert 32 <= rows * columns <= 64
    assert updates == [ResolvedPromptUpdate("image", IMAGE_TOKEN_ID, IMAGE_TOKEN_ID, rows * columns)]
    again, _ = processor().process(photograph(name), "images[0]")
    assert again == item


def test_the_number_of_patches_follows_the_size() -> None:
    def num_patches(width: int, height: int) -> int:
        _, (update,) = processor().process(plain(width, height), "image")
        return update.length

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
    item, _ = processor().process(encode(image), "image")
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
    item, _ = processor().process(encode(image), "image")
    pixels, _ = arrays(item)
    assert np.array_equal(pixels, cut_patches(image.resize((48, 32), Image.Resampling.BICUBIC), 16))


def test_orientation_decides_the_grid() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    item, _ = processor().process(encode(noise(64, 16), exif=exif), "image")
    assert arrays(item)[1].tolist() == [4, 1]


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 64), st.integers(1, 300))
def test_grid_properties(width: int, height: int, patch_size: int, max_patches: int) -> None:
    rows, columns = choose_grid(width, height, patch_size=patch_size, max_patches=max_patches)
    assert 1 <= rows * columns <= max_patches
    natural = [max(1, (2 * side + patch_size) // (2 * patch_size)) for side in (height, width)]
    assert rows <= natural[0], "never enlarged beyond rounding to a patch"
    assert columns <= natural[1]
    if natural[0] * natural[1] <= max_patches:
        assert [rows, columns] == natural
    assert (columns, rows) == choose_grid(height, width, patch_size=patch_size, max_patches=max_patches)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(4, 300))
def test_scaling_down_keeps_the_form(width: int, height: int, max_patches: int) -> None:
    """Each side is within one patch of what the exact aspect gives, and the limit is used as far as that allows."""
    rows, columns = choose_grid(width, height, patch_size=1, max_patches=max_patches)
    if width * height > max_patches and rows > 1 and columns > 1:
        exact_rows = (max_patches * height / width) ** 0.5
        exact_columns = (max_patches * width / height) ** 0.5
        assert exact_rows - 1 < rows <= exact_rows + 1e-9
        assert exact_columns - 1 < columns <= exact_columns + 1e-9


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
    monkeypatch.setattr("mmcached.frontend.processor._VERSION", -1)
    seen.append(processor().fingerprint)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("data", "error"), [(b"", EmptyImage), (b"nonsense", CorruptImage), (png_header(40_000, 40_000), ImageTooLarge)]
)
def test_errors_name_the_image(data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"images\[1\]"):
        processor().process(data, "images[1]")


def test_limits_are_passed_on() -> None:
    with pytest.raises(ImageTooLarge, match="at most 63 pixels"):
        ImageProcessor(MODEL, max_pixels=63, max_bytes=1 << 20).process(plain(8, 8), "image")
    with pytest.raises(ImageTooLarge, match="at most 10 bytes"):
        ImageProcessor(MODEL, max_pixels=64, max_bytes=10).process(plain(8, 8), "image")
