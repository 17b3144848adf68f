"""Clips that are larger than what a service has room for are encoded all the same, and come out as elsewhere."""

from __future__ import annotations

from pathlib import Path

import torch

from mmcached.client import Client, Video
from mmcached.wire.limits import LimitsConfig
from tests.clips.files import video
from tests.integration.local_service import LocalService
from tests.integration.processes import eventually, small_config
from tests.integration.workloads import photo

KIB = 2**-20  # in GiB


def test_a_clip_with_more_of_everything_than_there_is_room_for(run_dir: Path) -> None:
    """80 embeddings in 20 slices, one of which is 18 KiB, and what is said of it 1 KiB."""
    clips = [Video(video(40), fps=10)]
    sizes = {
        "mm_processor_cache_gb": 100 * KIB,
        "mm_shm_cache_max_object_size_mb": 1,
        "ring_num_slots": 8,
        "encoder_cache_size": 16,
        "max_num_encoder_input_tokens": 16,
        "store_num_slots": 32,
        "store_client_quota_gb": 4 * KIB,
        "limits": LimitsConfig(max_inline_output_kb=0, min_shared_encode_ms=0, output_wait_s=0.2),
    }
    found = []
    for name, changes in (("plain", {}), ("narrow", sizes)):
        config = small_config(world_size=1, **changes)
        with LocalService(run_dir / name, config, saves_outputs=True), Client(run_dir / name) as client:
            for _ in range(3):
                (outputs,) = client.encode(videos=clips)
                found.append((outputs.joined(), client.generate("see <video>", max_tokens=3, videos=clips).tokens))
            assert client.stats().requests_failed == 0
    assert found[0][0].shape == (80, 64)
    assert all(torch.equal(outputs, found[0][0]) and tokens == found[0][1] for outputs, tokens in found)


def test_what_is_taken_as_an_answer_is_not_asked_for_again(run_dir: Path) -> None:
    """Else what comes once would make old what is used: an answer lies in the store, and a rank finds there what
    another one has encoded.
    """
    clips, images = [Video(video(40), fps=10)], [photo(0), photo(1)]
    config = small_config(limits=LimitsConfig(max_inline_output_kb=0, min_shared_encode_ms=0))
    with LocalService(run_dir, config, saves_outputs=True), Client(run_dir) as client:
        client.put("a record", {})

        def hits() -> int:
            """Return how many there were, with all that this client has had."""
            before = client.stats().store.hits
            assert client.get("a record") is not None
            return eventually(lambda: client.stats().store.hits, lambda now: now > before, "it is counted") - 1

        client.encode(images=images, videos=clips)
        assert hits() <= 1, "of the list of the slices, by the frontend"
        client.encode(images=images, videos=clips)
        assert hits() >= 22
