"""Images by name, end to end in each mode: the same answers without a file or a second preprocessing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mmcached.client import Client
from mmcached.wire.errors import CacheMiss
from tests.integration.local_service import LocalService
from tests.integration.test_bit_identical import MODES, base, quiet_stats
from tests.integration.workloads import photo

PROMPT = "what is <image> beside <image>?"
TWICE = "<image> and <image>"
PHOTOS = [photo(0), photo(1)]
IDS = ["a cat", "a dog"]


@pytest.mark.parametrize("mode", MODES)
def test_by_name_is_as_by_content(mode: str, run_dir: Path) -> None:
    with LocalService(run_dir, base(world_size=1, **MODES[mode])), Client(run_dir) as client:
        wanted = client.generate(PROMPT, PHOTOS, hidden_states=True)
        embeddings = client.encode(PHOTOS)
        with pytest.raises(CacheMiss) as caught:
            client.generate(PROMPT, [PHOTOS[0], None], image_ids=[None, IDS[1]])
        assert caught.value.mm_hashes == [IDS[1]]
        named = client.generate(PROMPT, PHOTOS, image_ids=IDS, hidden_states=True)
        assert named.tokens == wanted.tokens
        before = client.stats().processor
        if mode == "off":
            with pytest.raises(CacheMiss):
                client.encode([None], image_ids=IDS[:1])
            return
        again = client.generate(PROMPT, [None, None], image_ids=IDS, hidden_states=True)
        assert again.tokens == wanted.tokens
        assert all(
            torch.equal(states, wanted.hidden_states)  # type: ignore[arg-type]
            for states in (named.hidden_states, again.hidden_states)
        )
        mixed = client.encode([None, PHOTOS[1]], image_ids=[IDS[0], None])
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(mixed, embeddings, strict=True))
        after = quiet_stats(run_dir).processor
        assert after.items_processed == before.items_processed
        assert after.hits == before.hits + 4


@pytest.mark.parametrize("mode", ["lru", "shm"])
@pytest.mark.parametrize("order", [(0, 3), (3, 0)])
def test_a_name_that_is_used_again_for_an_image_of_another_size(
    mode: str, order: tuple[int, int], run_dir: Path
) -> None:
    """P0 has let go of the first image, the engine's caches have not."""
    first, second = (photo(index) for index in order)
    with LocalService(run_dir, base(world_size=1, **MODES[mode])) as service, Client(run_dir) as client:
        wanted, tokens = client.encode([second]), client.generate(TWICE, [second, second], hidden_states=True)
        client.generate(TWICE, [first, first], image_ids=["a", "a"])
        service.gateway.requests.items.clear()
        (embeddings,) = client.encode([second], image_ids=["a"])
        assert torch.equal(embeddings, wanted[0])
        again = client.generate(TWICE, [None, second], image_ids=["a", "a"], hidden_states=True)
        assert again.tokens == tokens.tokens
        assert torch.equal(again.hidden_states, tokens.hidden_states)  # type: ignore[arg-type]
        stats = quiet_stats(run_dir)
        assert (stats.desyncs, stats.resends) == (0, 0)
