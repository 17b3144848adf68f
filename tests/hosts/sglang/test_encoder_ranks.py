"""Encoder servers with two ranks each, as processes over gloo: SGLang's own code makes the ranks agree on what the
store has.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts.sglang.rank_processes import Ranks, ranks
from tests.integration.lone_frontend import LoneFrontend

pytestmark = pytest.mark.timeout(1200)
ENCODER = "tests.hosts.sglang.encoder_rank"


def encode(server: Ranks, *pictures: int) -> tuple[str, list[int]]:
    """Return the digest of the pictures' embeddings, and the places of those that both ranks have encoded."""
    one, other = server.tell("step", *pictures)
    assert one is not None
    assert other == {"sha256": None, "encoded": one["encoded"]}, "rank 0 sends the embeddings"
    return one["sha256"], one["encoded"]


def test_ranks_encode_what_the_store_lacks(checkpoint: Path, store: LoneFrontend) -> None:
    path = store.directory.path
    with ranks(ENCODER, checkpoint, path) as one, ranks(ENCODER, checkpoint, path) as other:
        digest, encoded = encode(one, 1, 2)
        assert encoded == [0, 1]
        before = store.stats().store.puts
        assert encode(other, 1, 2) == (digest, [])
        assert encode(other, 3, 1)[1] == [0]
        assert store.stats().store.puts == before + 1, "one rank saves"
        store.kill()
        assert encode(one, 4)[1] == [0]
        assert encode(other, 4)[1] == [0]
        store.start()
