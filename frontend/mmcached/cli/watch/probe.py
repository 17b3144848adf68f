"""The question that tells whether the service really works: a small generation about a small image, end to end."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from mmcached.client import Client
from mmcached.wire.errors import MmcachedError

PROBE_TIMEOUT_S = 10.0


def probe(run_dir: Path, timeout_s: float = PROBE_TIMEOUT_S) -> None:
    """Send one real request through frontend, ring, engine and every worker.

    Raises:
        MmcachedError: it was not answered, or not with one token.
    """
    with Client(run_dir, connect_timeout_s=timeout_s, fail_open=False) as client:
        generation = client.generate("ready? <image>", [tiny_png()], max_tokens=1, timeout_s=timeout_s)
    if len(generation.tokens) != 1:
        raise MmcachedError(f"the probe was answered with {len(generation.tokens)} tokens, not 1")


def tiny_png() -> bytes:
    """Return an 8 x 8 grey image; its pixels are a gradient."""
    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(range(32 * row, 32 * row + 8)) for row in range(8))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
