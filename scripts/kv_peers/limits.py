"""What the plainest loop in Python takes for the same result: no class, no books, one C call per block."""

from __future__ import annotations

import hashlib
import random
import secrets
import struct

from benchmark import Row, row
from kv_peers import samplers as sample
from kv_peers.paths import PATHS, Path
from kv_peers.sides import BLOCK_SIZE, Ours
from kv_peers.timing import Sampler, compare, cpu_ns

PACKED_TOKENS = "packed tokens"
_DIGEST_BYTES = 32


def limit_rows(num_rounds: int) -> list[Row]:
    """Hashing against SHA-256 over packed tokens, a lookup against a dict alone."""
    return [
        _against(PATHS["hashing"], PACKED_TOKENS, _packed(), num_rounds),
        _against(PATHS["lookup"], "a dict alone", _dict_alone(), num_rounds),
    ]


def _against(path: Path, peer: str, limit: Sampler, num_rounds: int) -> Row:
    figures = compare({"ours": path.sampler(Ours()), "limit": limit}, num_rounds)
    return row(path.name, path.params, figures["ours"] / 1000, "us", peer=peer, peer_value=figures["limit"] / 1000)


def _packed() -> Sampler:
    token_ids = random.Random(0).choices(range(150_000), k=sample.HASHED_TOKENS)
    pack = struct.Struct(f"<{sample.HASHED_TOKENS}I").pack
    block_bytes = 4 * BLOCK_SIZE

    def run() -> list[bytes]:
        packed = pack(*token_ids)
        digest = bytes(_DIGEST_BYTES)
        found = []
        for start in range(0, len(packed), block_bytes):
            digest = hashlib.sha256(digest + packed[start : start + block_bytes]).digest()
            found.append(digest)
        return found

    def many() -> None:
        for _ in range(sample.HASH_CALLS):
            run()

    return lambda: cpu_ns(many) / sample.HASH_CALLS


def _dict_alone() -> Sampler:
    digests = [secrets.token_bytes(_DIGEST_BYTES) for _ in range(sample.LONG_HIT)]
    block_ids = {digest: block_id for block_id, digest in enumerate(digests, 1)}

    def run() -> list[int]:
        found = []
        for digest in digests:
            block_id = block_ids.get(digest)
            if block_id is None:
                break
            found.append(block_id)
        return found

    return lambda: cpu_ns(run)
