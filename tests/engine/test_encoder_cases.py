"""The cases that vLLM tests its encoder cache managers with (22, in our words), played by a caller who knows only them.

It uses vLLM's names, asks `can_allocate` just before it allocates, and looks into the tables. EC14, how many embeddings
lie in a part of an item's placeholders, is no case here: books count whole items.
"""

from __future__ import annotations

from collections import OrderedDict

import pytest

from mmcached.engine import EncoderCacheManager, Request, SharedEncoderCacheManager
from mmcached.wire.messages.parts import Feature, Inline
from tests.engine.builders import encode

SIZE = 10
UNLIMITED = 1_000


def manager_of(cache_size: int = SIZE) -> SharedEncoderCacheManager:
    return SharedEncoderCacheManager(cache_size=cache_size)


def allocate(manager: SharedEncoderCacheManager, request: Request, input_id: int = 0) -> None:
    assert not manager.check_and_update_cache(request, input_id)
    assert manager.can_allocate(request, input_id, UNLIMITED, 0)
    manager.allocate(request, input_id)


def allocate_and_free(manager: SharedEncoderCacheManager, *requests: Request) -> None:
    for request in requests:
        for input_id in range(len(request.features)):
            allocate(manager, request, input_id)
        manager.free(request)


def test_ec1_ec2_an_item_is_missed_allocated_found_and_freed() -> None:
    manager, request = manager_of(), encode(1, ("a", 4))
    allocate(manager, request)
    assert manager.check_and_update_cache(request, 0)
    assert manager.cached == {"a": {1}}
    assert manager.num_free_slots == 6
    for _ in range(2):
        manager.free_encoder_input(request, 0)
        assert manager.cached == {"a": set()}
        assert manager.freeable == OrderedDict(a=4)
        assert (manager.num_free_slots, manager.num_freeable_slots) == (6, 10)


def test_ec4_room_is_made_by_evicting_what_nobody_refers_to() -> None:
    """Theirs evicts when it is asked; ours when the room is taken."""
    manager, x, y = manager_of(), encode(1, ("x", 6)), encode(2, ("y", 5))
    allocate_and_free(manager, x)
    assert manager.can_allocate(y, 0, UNLIMITED, 0)
    assert manager.has_cache(x, 0)
    assert manager.freed == []
    manager.allocate(y, 0)
    assert not manager.has_cache(x, 0)
    assert "x" not in manager.cached
    assert "x" not in manager.freeable
    assert manager.num_embeds_by_hash == {"y": 5}
    assert manager.freed == ["x"]
    assert manager.stats().evictions == 1


def test_ec9_evicted_and_allocated_again_is_not_told() -> None:
    manager = manager_of(8)
    allocate_and_free(manager, encode(1, ("a", 4)), encode(2, ("b", 4)))
    allocate_and_free(manager, encode(3, ("c", 4)))  # evicts a
    allocate(manager, encode(4, ("a", 4)))  # evicts b
    assert manager.get_freed_mm_hashes() == ["b"]


@pytest.mark.parametrize(
    ("compute", "num_taken", "fits"), [(100, 0, True), (100, 4, True), (100, 5, False), (6, 0, True), (5, 0, False)]
)
def test_ec10_ec11_what_is_decided_already_counts(compute: int, num_taken: int, *, fits: bool) -> None:
    manager, request = manager_of(), encode(1, ("a", 5), ("b", 6))
    assert manager.can_allocate(request, 1, compute, num_taken) == fits


def test_ec12_embeddings_count_and_not_placeholders() -> None:
    manager = manager_of(100)
    item = Feature("a", "image", 0, 100, 8, 100, Inline(0, 0))
    request = Request(1, "encode", [], [item], max_tokens=0)
    allocate(manager, request)
    assert manager.num_free_slots == 92


def test_ec13_sizes_are_known_until_the_reset() -> None:
    manager, request = manager_of(), encode(1, ("a", 3))
    assert manager.get_cached_num_encoder_embeds(request, 0) is None
    allocate_and_free(manager, request)
    other = encode(2, ("a", 4))
    assert manager.get_cached_num_encoder_embeds(other, 0) == 3
    manager.reset()
    assert manager.get_cached_num_encoder_embeds(other, 0) is None


def test_ec15_ec16_a_reset_clears_all_tables() -> None:
    manager = manager_of()
    allocate_and_free(manager, encode(1, ("a", 6)), encode(2, ("b", 6)))
    allocate(manager, encode(3, ("c", 2)))
    manager.reset()
    assert (manager.cached, manager.num_embeds_by_hash, manager.freeable, manager.freed) == ({}, {}, {}, [])
    assert manager.holders() == set()
    assert (manager.num_free_slots, manager.num_freeable_slots) == (10, 10)
    allocate(manager, encode(4, ("d", 10)))
    assert manager.cached == {"d": {4}}


def repeating() -> tuple[SharedEncoderCacheManager, Request]:
    """A manager, and a request that refers to "a" twice and to "b"."""
    manager, request = manager_of(20), encode(1, ("a", 4), ("b", 4), ("a", 4))
    allocate(manager, request, 0)
    allocate(manager, request, 1)
    assert manager.check_and_update_cache(request, 2)
    return manager, request


def test_ec19_a_repeated_item_is_not_evicted_in_between() -> None:
    manager, request = repeating()
    manager.free_encoder_input(request, 0)
    manager.free_encoder_input(request, 1)
    newcomer = encode(2, ("c", 17))
    assert not manager.can_allocate(newcomer, 0, UNLIMITED, 0)
    manager.free_encoder_input(request, 2)
    allocate(manager, newcomer)
    assert manager.get_freed_mm_hashes() == ["b", "a"]


@pytest.mark.parametrize("num_releases", [0, 1, 5])
def test_ec21_ec22_the_manager_of_encoder_decoder_models_starts_anew(num_releases: int) -> None:
    """Nothing is shared there, all items are released after every step, and space is all that matters."""
    manager, first, second = EncoderCacheManager(cache_size=SIZE), encode(1, ("a", 10)), encode(2, ("b", 10))
    manager.allocate(first, 0)
    for _ in range(num_releases):
        manager.free(first)
    manager.reset()
    assert manager.num_free_slots == 10
    assert manager.take_freed() == []
    assert manager.can_allocate(second, 0, UNLIMITED, 0)
    manager.allocate(second, 0)
    assert not manager.can_allocate(first, 0, UNLIMITED, 0)
