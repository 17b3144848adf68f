"""Decoding: every pixel format becomes RGB in one way, and everything that is no good image becomes a typed error."""

from __future__ import annotations

import contextlib
import io
import warnings
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from mmcached.pictures.images import decode_image
from mmcached.pictures.settings import PictureSettings
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CorruptImage, ImageTooLarge
from tests.gateway.pictures import (
    PHOTOGRAPHS,
    bmp_of_runs,
    encode,
    jpeg_of_scans,
    noise,
    photograph,
    plain,
    png_header,
    png_of_chunks,
    png_with,
)
from tests.house.drawing import examples

SETTINGS = PictureSettings.from_config(ServiceConfig())
LOSSLESS: dict[str, dict[str, Any]] = {"WEBP": {"lossless": True}}


def settings_with(**values: Any) -> PictureSettings:
    return msgspec.structs.replace(SETTINGS, **values)


def decode(data: bytes) -> np.ndarray[Any, Any]:
    image = decode_image(data, SETTINGS)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs(name: str) -> None:
    data = photograph(name)
    with Image.open(io.BytesIO(data)) as reference:
        assert np.array_equal(decode(data), np.asarray(reference.convert("RGB")))


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "TIFF", "WEBP"])
def test_lossless_formats_keep_every_pixel(file_format: str) -> None:
    image = noise(31, 17)
    options = LOSSLESS.get(file_format, {})
    assert np.array_equal(decode(encode(image, file_format, **options)), np.asarray(image))


@pytest.mark.parametrize(
    ("mode", "colour", "file_format", "expected"),
    [
        ("1", 1, "PNG", (255, 255, 255)),
        ("1", 0, "TIFF", (0, 0, 0)),
        ("L", 77, "PNG", (77, 77, 77)),
        ("LA", (0, 255), "PNG", (0, 0, 0)),
        ("LA", (0, 0), "PNG", (255, 255, 255)),
        ("LA", (0, 51), "TIFF", (204, 204, 204)),
        ("RGB", (1, 2, 3), "PNG", (1, 2, 3)),
        ("RGBA", (255, 0, 0, 255), "PNG", (255, 0, 0)),
        ("RGBA", (255, 0, 0, 0), "PNG", (255, 255, 255)),
        ("RGBA", (255, 0, 0, 51), "PNG", (255, 204, 204)),
        ("CMYK", (0, 255, 255, 0), "TIFF", (255, 0, 0)),
        ("CMYK", (0, 0, 0, 255), "JPEG", (0, 0, 0)),
        ("I;16", 0x1234, "PNG", (0x12, 0x12, 0x12)),
        ("I;16", 0xFFFF, "TIFF", (255, 255, 255)),
        ("I;16B", 0x1234, "TIFF", (0x12, 0x12, 0x12)),
        ("YCbCr", (0, 128, 128), "TIFF", (0, 0, 0)),
    ],
)
def test_pixel_formats(mode: str, colour: Any, file_format: str, expected: tuple[int, int, int]) -> None:
    pixels = decode(plain(3, 2, colour, mode, file_format))
    assert pixels.shape == (2, 3, 3)
    assert {tuple(map(int, pixel)) for pixel in pixels.reshape(-1, 3)} == {expected}


def test_palette_with_transparency() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putdata([0, 1])
    assert decode(encode(image)).tolist() == [[[10, 20, 30], [200, 100, 50]]]
    assert decode(encode(image, transparency=0)).tolist() == [[[255, 255, 255], [200, 100, 50]]]


def test_colour_that_counts_as_transparent() -> None:
    image = Image.new("RGB", (2, 1), (1, 2, 3))
    image.putpixel((1, 0), (9, 9, 9))
    assert decode(encode(image, transparency=(1, 2, 3))).tolist() == [[[255, 255, 255], [9, 9, 9]]]


def test_pixel_format_without_a_meaning() -> None:
    with pytest.raises(CorruptImage) as caught:
        decode(plain(2, 2, 0.5, "F", "TIFF"))
    assert caught.value.details["value"] == "F"


@pytest.mark.parametrize("file_format", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame(file_format: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "lime", "blue")]
    options = LOSSLESS.get(file_format, {})
    data = encode(frames[0], file_format, save_all=True, append_images=frames[1:], **options)
    assert decode(data)[0, 0].tolist() == [255, 0, 0]


UPRIGHT = np.array(
    [[[200, 0, 0], [0, 200, 0], [0, 0, 200]], [[90, 90, 90], [0, 0, 0], [250, 250, 250]]], dtype=np.uint8
)
STORED_AS = {
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.transpose(1, 0, 2),
    6: np.rot90(UPRIGHT, 1),
    7: UPRIGHT[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90(UPRIGHT, -1),
}


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", STORED_AS)
def test_orientation_is_applied(orientation: int, file_format: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = LOSSLESS.get(file_format, {})
    stored = Image.fromarray(np.ascontiguousarray(STORED_AS[orientation]))
    assert np.array_equal(decode(encode(stored, file_format, exif=exif, **options)), UPRIGHT)


def test_orientation_of_a_jpeg() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode(encode(noise(40, 24), "JPEG", exif=exif)).shape == (40, 24, 3)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"]
)
def test_a_damaged_description_does_not_damage_the_picture(exif: bytes) -> None:
    assert decode(encode(noise(8, 8), "PNG", exif=exif)).shape == (8, 8, 3)


def test_pixel_limit() -> None:
    data = plain(8, 9)
    decode_image(data, settings_with(max_pixels=72))
    with pytest.raises(ImageTooLarge) as caught:
        decode_image(data, settings_with(max_pixels=71), field="images[0]")
    assert caught.value.details == {"field": "images[0]", "value": "8 x 9 pixels", "limit": "at most 71 pixels"}


@pytest.mark.parametrize("size", [(41, 2), (2, 41)])
def test_form_limit(size: tuple[int, int]) -> None:
    decode_image(plain(40, 2), settings_with(max_aspect_ratio=20))
    with pytest.raises(ImageTooLarge) as caught:
        decode_image(plain(*size), settings_with(max_aspect_ratio=20), field="images[0]")
    assert caught.value.details == {
        "field": "images[0]",
        "value": f"{size[0]} x {size[1]} pixels",
        "limit": "one side at most 20 times the other",
    }


def test_limits_of_the_structure() -> None:
    for data in (jpeg_of_scans(100), png_of_chunks(32_768)):
        with pytest.raises(ImageTooLarge):
            decode(data)
    with pytest.raises(CorruptImage):
        decode(bmp_of_runs())
    assert decode(jpeg_of_scans(50)).shape == (64, 64, 3)
    assert decode(png_of_chunks(1000)).shape == (8, 8, 3)


@pytest.mark.parametrize("error", [MemoryError(), OSError("out of memory error when reading image file")])
def test_memory_that_ends_is_not_the_file_s_fault(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: ImageFile.ImageFile) -> None:
        raise error

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(MemoryError):
        decode(plain(8, 8))


def test_strips_make_the_picture_that_the_whole_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    grey = np.random.default_rng(1).integers(0, 1 << 16, (21, 33), dtype=np.uint16)
    coloured = Image.fromarray(np.random.default_rng(2).integers(0, 256, (21, 33, 4), dtype=np.uint8))
    files = [encode(coloured), encode(Image.fromarray(grey)), encode(noise(33, 21).convert("P"), transparency=7)]
    whole = [decode(data) for data in files]
    monkeypatch.setattr("mmcached.pictures.images._STRIP_PIXELS", 100)
    for data, expected in zip(files, whole, strict=True):
        assert np.array_equal(decode(data), expected)


@pytest.mark.parametrize("orientation", STORED_AS)
@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "JPEG"])
def test_a_picture_is_scaled_before_it_is_turned(orientation: int, file_format: str) -> None:
    """And looks as if it had been turned first; a JPEG is decoded at a half here."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth = noise(8, 6).resize((400, 300), Image.Resampling.BICUBIC)
    stored = Image.fromarray(np.asarray(smooth))
    asked: list[tuple[int, int]] = []

    def scaled_size(size: tuple[int, int]) -> tuple[int, int]:
        asked.append(size)
        return size[0] // 5, size[1] // 5

    image = decode_image(encode(stored, file_format, exif=exif), SETTINGS, scaled_size=scaled_size)
    upright = decode(encode(stored, file_format, exif=exif))
    assert set(asked) == {(upright.shape[1], upright.shape[0])}
    assert image.size == (upright.shape[1] // 5, upright.shape[0] // 5)
    expected = np.asarray(Image.fromarray(upright).resize(image.size, Image.Resampling.BICUBIC), dtype=np.int16)
    assert np.abs(np.asarray(image) - expected).max() <= (8 if file_format == "JPEG" else 2)


def test_a_large_jpeg_is_decoded_small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, int]] = []
    resize = Image.Image.resize

    def seen(image: Image.Image, *arguments: Any) -> Image.Image:
        sizes.append(image.size)
        return resize(image, *arguments)

    monkeypatch.setattr(Image.Image, "resize", seen)
    pixels: list[int] = []
    data = plain(4000, 3000, file_format="JPEG")
    decode_image(data, SETTINGS, scaled_size=lambda size: (288, 192), before_pixels=pixels.append)
    assert sizes == [(1000, 750)]
    assert pixels == [12_000_000], "what the codec may need memory for"


@pytest.mark.parametrize("side", [8_001, 10_000, 12_000, 40_000, 100_000])
def test_a_huge_header_is_refused_before_anything_is_allocated(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Just over our limit, where Pillow only warns, and where Pillow itself raises."""

    def must_not_load(self: ImageFile.ImageFile) -> None:
        pytest.fail("the pixels were asked for")

    monkeypatch.setattr(ImageFile.ImageFile, "load", must_not_load)
    blocks_before = Image.core.get_stats()["new_count"]  # type: ignore[attr-defined]
    with pytest.raises(ImageTooLarge) as caught:
        decode_image(png_header(side, side), SETTINGS, field="images[3]")
    assert caught.value.details["field"] == "images[3]"
    assert Image.core.get_stats()["new_count"] == blocks_before  # type: ignore[attr-defined]


def test_between_pillow_s_warning_and_its_limit_ours_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert decode_image(plain(15, 10), settings_with(max_pixels=150)).size == (15, 10)
        with pytest.raises(ImageTooLarge):
            decode_image(plain(15, 10), settings_with(max_pixels=149))
        with pytest.raises(ImageTooLarge, match="Pillow"):
            decode_image(plain(21, 10), settings_with(max_pixels=1000))
    assert caught == []


@pytest.mark.parametrize(
    "data",
    [b"\0", b"not an image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"P6 2 2 255 " + b"\0" * 12],
)
def test_what_is_no_image_of_our_formats(data: bytes) -> None:
    """The last two are images for Pillow; one of them would start Ghostscript."""
    with pytest.raises(CorruptImage, match="PNG, JPEG"):
        decode(data)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_truncated(file_format: str) -> None:
    data = encode(noise(64, 64), file_format)
    for length in (len(data) // 2, len(data) - len(data) // 8):
        with pytest.raises(CorruptImage) as caught:
            decode_image(data[:length], SETTINGS, field="images[0]")
        assert caught.value.details["field"] == "images[0]"


@pytest.mark.parametrize(
    ("chunk", "raised_by_pillow"), [(("x\x01\xee\xba", b""), SyntaxError), (("IHDR", b"\0\0"), ValueError)]
)
def test_damage_that_pillow_reports_in_other_ways(chunk: tuple[str, bytes], raised_by_pillow: type[Exception]) -> None:
    half = zlib.compress(bytes(64 * 64 * 3 + 64))[:20]
    data = png_with(("IDAT", half), chunk) if chunk[0] != "IHDR" else png_with(chunk, ("IDAT", half))

    def load() -> None:
        with Image.open(io.BytesIO(data)) as image:
            image.load()

    with pytest.raises(raised_by_pillow):
        load()
    with pytest.raises(CorruptImage, match=raised_by_pillow.__name__):
        decode(data)


def test_errors_do_not_carry_addresses() -> None:
    """What is wrong with a file is said alike each time."""
    with pytest.raises(CorruptImage) as first:
        decode(b"not an image")
    with pytest.raises(CorruptImage) as second:
        decode(b"not an image")
    assert str(first.value) == str(second.value)


VICTIMS = {
    "png": encode(noise(24, 24)),
    "transparent": encode(noise(24, 24), transparency=(1, 2, 3)),
    "jpeg": encode(noise(24, 24), "JPEG"),
    "webp": encode(noise(24, 24), "WEBP"),
    "gif": encode(noise(24, 24), "GIF"),
    "tiff": encode(noise(24, 24), "TIFF", compression="tiff_deflate"),
}
MUTATIONS = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=12)


@settings(max_examples=examples(250))
@given(st.sampled_from(sorted(VICTIMS)), MUTATIONS, st.floats(0, 1), st.integers(0, 3))
def test_mutated_files_give_a_picture_or_a_typed_error(
    name: str, mutations: list[tuple[float, int]], cut: float, cut_one_of: int
) -> None:
    data = bytearray(VICTIMS[name])
    for place, value in mutations:
        # Half of the changes go to the first 64 bytes, where the structure is.
        size = min(64, len(data)) if value % 2 else len(data)
        data[int(place * size)] = value
    if cut_one_of == 0:
        del data[int(cut * len(data)) :]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(CorruptImage, ImageTooLarge):
            assert decode_image(bytes(data), settings_with(max_pixels=1_000_000)).mode == "RGB"
    assert caught == []


@settings(max_examples=examples(100))
@given(
    st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"BM", b"II*\0"]),
    st.binary(max_size=200),
)
def test_random_bytes_give_a_typed_error(start: bytes, rest: bytes) -> None:
    with contextlib.suppress(CorruptImage, ImageTooLarge):
        decode_image(start + rest, settings_with(max_pixels=1_000_000))
