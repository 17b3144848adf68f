"""Checks a file's structure before decoding, for parts that are small in bytes and large in work.

    JPEG    each scan makes the decoder process all pixels again, and may take only a dozen bytes
    PNG     each chunk is an iteration of a loop
    BMP     a compressed one is decoded in Python, byte by byte

Reads markers and lengths only; a damaged structure is left for the decoder to refuse. Its own work is bounded: it stops
at the first part beyond a limit, and skips the content of parts without a loop.
"""

from __future__ import annotations

import re

from mmcached.wire.errors import CorruptImage, ImageTooLarge

_PNG_START = b"\x89PNG\r\n\x1a\n"
_JPEG_START = b"\xff\xd8"
_BMP_START = b"BM"

_JPEG_MARK = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""A marker that ends the data of a scan: not a stuffed 0xff, filling, or a restart."""

_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA
_JPEG_ALONE = (0x01, 0xD8)
"""Markers without a length."""

_BMP_HAS_COMPRESSION = 40
"""Headers of at least this size have a compression field."""
_BMP_PLAIN = frozenset((0, 3, 6))
"""Plain pixels, with or without masks for the colours."""


def check_structure(data: bytes, *, max_jpeg_scans: int, max_parts: int, field: str = "image") -> None:
    """Refuse a file that needs much more work than its size suggests.

    Args:
        max_parts: Chunks of a PNG file, segments of a JPEG file.
        field: Name of this image in errors.

    Raises:
        ImageTooLarge: More scans or parts than the limit.
        CorruptImage: A compressed BMP file.
    """
    start = data[:8]
    if start.startswith(_JPEG_START):
        _check_jpeg(data, max_jpeg_scans, max_parts, field)
    elif start == _PNG_START:
        _check_png(data, max_parts, field)
    elif start.startswith(_BMP_START):
        _check_bmp(data, field)


def _check_jpeg(data: bytes, max_scans: int, max_parts: int, field: str) -> None:
    num_scans = num_parts = 0
    place = len(_JPEG_START)
    while (found := _JPEG_MARK.search(data, place)) is not None:
        mark, place = data[found.end() - 1], found.end()
        if mark == _JPEG_END:
            return
        num_parts += 1
        num_scans += mark == _JPEG_SCAN
        if num_scans > max_scans:
            raise ImageTooLarge(field, f"more than {max_scans} scans", f"at most {max_scans} scans of a JPEG file")
        _check_parts(num_parts, max_parts, field)
        if mark not in _JPEG_ALONE:
            place += max(2, int.from_bytes(data[place : place + 2]))


def _check_png(data: bytes, max_parts: int, field: str) -> None:
    num_parts = 0
    place = len(_PNG_START)
    while place + 8 <= len(data):
        num_parts += 1
        _check_parts(num_parts, max_parts, field)
        if data[place + 4 : place + 8] == b"IEND":
            return
        place += 12 + int.from_bytes(data[place : place + 4])  # length, name, content, checksum


def _check_parts(num_parts: int, max_parts: int, field: str) -> None:
    if num_parts > max_parts:
        raise ImageTooLarge(field, f"more than {max_parts} parts", f"at most {max_parts} chunks or segments")


def _check_bmp(data: bytes, field: str) -> None:
    header_size = int.from_bytes(data[14:18], "little")
    compression = int.from_bytes(data[30:34], "little")
    if header_size >= _BMP_HAS_COMPRESSION and compression not in _BMP_PLAIN:
        raise CorruptImage(field, f"compression {compression}", "a compressed BMP file is not accepted; send a PNG")
