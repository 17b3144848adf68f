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
