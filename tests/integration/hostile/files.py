"""Makes picture files that are small to send and dear to decode, each in some other way."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable

from PIL import Image


def noise(width: int, height: int, seed: int, form: str = "JPEG", **options: object) -> bytes:
    """Return a picture that nobody has sent before."""
    image = Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(3 * width * height))
    return _saved(image, form, **options)


def many_scans(seed: int, count: int = 4000) -> bytes:
    """Return a progressive JPEG whose last scan is repeated: for each, the decoder goes over all of the picture."""
    whole = noise(64, 64, seed, "JPEG", progressive=True)
    start = whole.rindex(b"\xff\xda")
    return whole[:start] + whole[start:-2] * count + whole[-2:]


def thin(seed: int) -> bytes:
    """Return a picture of 60,000,000 x 1 pixels, a few kilobytes."""
    return _png(60_000_000, 1, seed)


def large_and_flat(seed: int) -> bytes:
    """Return a picture of 7,900 x 7,900 pixels with transparency."""
    return _saved(Image.new("RGBA", (7900, 7900), (seed % 256, seed // 256 % 256, 3, 128)), "PNG")


def run_length_bmp(seed: int, nbytes: int = 4 << 20) -> bytes:
    """Return a BMP of end-of-line codes."""
    data = bytes(nbytes - 4) + struct.pack("<I", seed)
    head = struct.pack("<IiiHHIIiiII", 40, 256, 30_000, 1, 8, 1, len(data), 0, 0, 256, 0)
    palette = bytes(4 * 256)
    offset = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(data), 0, 0, offset) + head + palette + data


def many_chunks(seed: int, count: int = 300_000) -> bytes:
    """Return a PNG that is all chunks."""
    whole = _png(64, 64, seed)
    note = _chunk(b"teXt", b"")
    return whole[:33] + note * count + whole[33:]


def torn(seed: int) -> bytes:
    """Return a JPEG that ends too early, with a few bytes changed."""
    rng = random.Random(seed)
    data = bytearray(noise(200, 200, seed))[: rng.randrange(200, 20_000)]
    for _ in range(10):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


EVIL: dict[str, Callable[[int], bytes]] = {
    "many scans": many_scans,
    "thin": thin,
    "large and flat": large_and_flat,
    "run-length BMP": run_length_bmp,
    "many chunks": many_chunks,
    "torn": torn,
}


def _png(width: int, height: int, seed: int) -> bytes:
    """Return a black picture of one bit a pixel."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    chunks = ((b"IHDR", header), (b"tIME", struct.pack(">HBBBBB", seed % 60_000, 1, 1, 1, 1, 1)), (b"IDAT", body))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in (*chunks, (b"IEND", b"")))


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()
