"""What is small in bytes and large in work is refused by its structure, and nothing else is."""

from __future__ import annotations

import pytest
from PIL import Image

from mmcached.pictures.structure import check_structure
from mmcached.wire.errors import CorruptImage, ImageTooLarge
from tests.gateway.pictures import (
    PHOTOGRAPHS,
    bmp_of_runs,
    encode,
    jpeg_of_scans,
    noise,
    photograph,
    plain,
    png_of_chunks,
)


def check(data: bytes, max_jpeg_scans: int = 20, max_parts: int = 100) -> None:
    check_structure(data, max_jpeg_scans=max_jpeg_scans, max_parts=max_parts, field="images[0]")


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_photographs_pass(name: str) -> None:
    check(photograph(name), max_parts=1000)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_format_passes(file_format: str) -> None:
    check(encode(noise(64, 64), file_format))


def test_scans_of_a_jpeg_are_counted() -> None:
    own = 6  # of a grey one that Pillow writes
    check(jpeg_of_scans(20 - own))
    with pytest.raises(ImageTooLarge) as caught:
        check(jpeg_of_scans(21 - own))
    assert caught.value.details == {
        "field": "images[0]",
        "value": "more than 20 scans",
        "limit": "at most 20 scans of a JPEG file",
    }


def test_what_looks_like_a_scan_inside_a_segment_is_none() -> None:
    """A thumbnail, a depth map or a colour profile may hold any bytes, and so may what is appended to a file."""
    data = encode(noise(64, 64), "JPEG", exif=b"Exif\0\0" + b"\xff\xda" * 1000, progressive=True)
    check(data + b"\xff\xda" * 1000)


def test_data_of_a_scan_is_not_read_as_segments() -> None:
    """Noise has hundreds of stuffed 0xff in its data, and restarts beside them."""
    data = encode(noise(640, 480), "JPEG", quality=95, restart_marker_rows=1)
    assert data.count(b"\xff\x00") > 100
    assert b"\xff\xd3" in data
    check(data, max_parts=12)


def test_chunks_of_a_png_are_counted() -> None:
    check(png_of_chunks(97))  # IHDR, IDAT and IEND beside them
    with pytest.raises(ImageTooLarge, match="at most 100 chunks"):
        check(png_of_chunks(98))


def test_segments_of_a_jpeg_are_counted() -> None:
    data = plain(8, 8, file_format="JPEG")
    with pytest.raises(ImageTooLarge, match="at most 100 chunks or segments"):
        check(data[:2] + b"\xff\xfe\0\3x" * 101 + data[2:])


def test_a_compressed_bmp_is_refused() -> None:
    with pytest.raises(CorruptImage, match="compressed BMP"):
        check(bmp_of_runs())
    check(encode(Image.new("P", (8, 8)), "BMP"))


@pytest.mark.parametrize(
    "bad", [b"\xff\xd8\xff", b"\xff\xd8\xff\xda", b"\xff\xd8\xff\xe0\0\0", b"BM", b"\x89PNG\r\n\x1a\n\0\0"]
)
def test_a_damaged_structure_is_left_to_the_decoder(bad: bytes) -> None:
    check(bad)


@pytest.mark.parametrize("mark", [b"\xff\xda\0\2", b"\xff\xfe\0\2", b"\xff\x01", b"\xff\xd8"])
def test_the_look_itself_ends_at_the_limit(mark: bytes) -> None:
    with pytest.raises(ImageTooLarge):
        check(b"\xff\xd8" + mark * 1_000_000)
