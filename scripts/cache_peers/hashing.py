"""The hasher: what it costs beyond its digest, and beside vLLM's for the same parts of a key."""

from __future__ import annotations

import importlib
import random

from blake3 import blake3

from benchmark import Row
from cache_peers.timing import calls_row
from mmcached.frontend.processing.hasher import MultiModalHasher
from ring_peers import vllm_imports

LARGE_BYTES = int(4.7 * (1 << 20))
SMALL_BYTES = 64
PARTS = {
    "modality": "image",
    "fingerprint": "mmcached image 1; patch 32, at most 64; 64000000 pixels, 67108864 bytes; Pillow 12.0.0",
    "tenant": "",
}


def against_the_digest(repeats: int) -> list[Row]:
    """Ours against BLAKE3 alone, over the same bytes."""
    hasher = MultiModalHasher()
    large = random.Random(0).randbytes(LARGE_BYTES)
    digest = calls_row(
        "hasher: a key",
        "4.7 MiB",
        lambda: hasher.item_key(large, **PARTS),
        peer="blake3 alone",
        peer_call=lambda: blake3(large).hexdigest(),
        calls=1,
        repeats=60 * repeats,
    )
    return [digest]


def against_vllm(repeats: int) -> list[Row]:
    """Ours against vLLM's, where the content is next to nothing. Raises `Unavailable`."""
    vllm_imports.load()
    theirs = importlib.import_module("vllm.multimodal.hasher").MultiModalHasher
    hasher = MultiModalHasher()
    small = random.Random(0).randbytes(SMALL_BYTES)
    return [
        calls_row(
            name,
            "64 bytes of content",
            ours,
            peer="vLLM hash_kwargs",
            peer_call=lambda: theirs.hash_kwargs("blake3", content=small, **PARTS),
            calls=300,
            repeats=4 * repeats,
        )
        for name, ours in (
            ("hasher: fixed cost of item_key", lambda: hasher.item_key(small, **PARTS)),
            ("hasher: fixed cost of hash_kwargs", lambda: hasher.hash_kwargs(content=small, **PARTS)),
        )
    ]
