"""Image files for the tests: photographs from the scikit-image wheel, and small made ones."""

from __future__ import annotations

import io
import struct
import zlib
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg")
"""In the public domain, or CC0."""


def photograph(name: str) -> bytes:
    return Path(str(distribution("scikit-image").locate_file(f"skimage/data/{name}"))).read_bytes()


def encode(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def plain(width: int, height: int, colour: Any = "red", mode: str = "RGB", file_format: str = "PNG") -> bytes:
    """One colour."""
    return encode(Image.new(mode, (width, height), colour), file_format)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to no pixels."""
    return png(_ihdr(width, height), ("IDAT", zlib.compress(b"\0" * 100)), ("IEND", b""))


def png_with(*chunks: tuple[str, bytes]) -> bytes:
    """A PNG of 64 x 64 pixels that goes on with these chunks."""
    return png(_ihdr(64, 64), *chunks)


def png(*chunks: tuple[str, bytes]) -> bytes:
    encoded = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        kind = name.encode("latin-1")
        encoded += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return encoded


def _ihdr(width: int, height: int) -> tuple[str, bytes]:
    return "IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)


def jpeg_of_scans(num_scans: int, side: int = 64) -> bytes:
    """A progressive JPEG whose scans go over the whole picture again and again, with ten bytes each."""
    data = encode(Image.new("L", (side, side), 99), "JPEG", progressive=True)
    end = data.index(b"\xff\xd9", data.index(b"\xff\xda"))
    refine = bytes.fromhex("ffda 0008 01 0100 00 00 10")
    return data[:end] + refine * num_scans + data[end:]


def png_of_chunks(num_chunks: int) -> bytes:
    """A good PNG with so many chunks more than it needs."""
    data = plain(8, 8)
    ihdr_end = 8 + 12 + 13
    comment = struct.pack(">I", 3) + b"tEXt" + b"a\0b"
    return data[:ihdr_end] + (comment + struct.pack(">I", zlib.crc32(comment[4:]))) * num_chunks + data[ihdr_end:]


def bmp_of_runs() -> bytes:
    """A BMP file that is compressed by run lengths: 8 x 8 pixels of colour 1."""
    rows = b"\x08\x01\0\0" * 8 + b"\0\x01"
    colours = bytes(range(256)) * 4
    header = struct.pack("<IiiHHIIiiII", 40, 8, 8, 1, 8, 1, len(rows), 0, 0, 256, 0)
    start = 14 + len(header) + len(colours)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + header + colours + rows
