"""Lookups, copies of the same content, and the checker itself."""

from __future__ import annotations

import pytest

from mmcached.engine.kv.pool.published import PublishedBlocks
from mmcached.wire.errors import InvariantError


def held_blocks(num_blocks: int) -> PublishedBlocks:
    """Of that many blocks, all but block 0 can be published."""
    return PublishedBlocks([0, *[1] * (num_blocks - 1)])


@pytest.mark.parametrize("num_found", [0, 1, 7, 8, 9, 24, 56, 119, 120, 121, 200])
def test_a_prefix_ends_at_the_first_key_that_is_not_there(num_found: int) -> None:
    blocks = held_blocks(201)
    keys = [b"%d" % index for index in range(200)]
    block_ids = list(range(1, 201))
    there = [index for index in range(200) if index != num_found]
    blocks.add([block_ids[index] for index in there], [keys[index] for index in there])
    assert blocks.find_prefix(keys) == block_ids[:num_found]
    assert blocks.find_prefix(iter(keys[:num_found])) == block_ids[:num_found]


def test_a_first_and_its_successor_may_go_together() -> None:
    blocks = held_blocks(5)
    blocks.add([1, 2, 3, 4], [b"same", b"same", b"same", b"other"])
    assert blocks.remove_and_return_keys([1, 4, 2]) == [b"other"]
    assert (blocks.find(b"same"), blocks.key_of[1:]) == (3, [None, None, b"same", None])
    assert blocks.remove_and_return_keys([3]) == [b"same"]


@pytest.mark.parametrize("last_key", [b"three", b"two"])
@pytest.mark.parametrize("published_ids", [[1], [2, 1], [1, 2, 3]])
def test_removing_what_is_not_published_is_a_bug(published_ids: list[int], last_key: bytes) -> None:
    blocks = held_blocks(5)
    blocks.add([1, 2, 3], [b"one", b"two", last_key])
    with pytest.raises(InvariantError, match="cannot be found"):
        blocks.remove([*published_ids, 4])


def test_a_refused_publication_leaves_no_trace() -> None:
    blocks = held_blocks(5)
    blocks.add([3], [b"three"])
    for block_ids in ([1, 2, 3], [3, 1, 2], [1, 0, 2], [1, 2, 1]):
        with pytest.raises(InvariantError, match="cannot be published"):
            blocks.add(block_ids, [b"a", b"b", b"c"])
        assert blocks.key_of == [None, None, None, b"three", None]
    with pytest.raises(InvariantError, match="2 blocks cannot be published under 1 keys"):
        blocks.add([1, 2], [b"a"])
    assert (blocks.find(b"a"), len(blocks)) == (None, 1)


def test_clearing_forgets_every_key_and_a_copy_counts_with_its_first() -> None:
    blocks = held_blocks(4)
    blocks.add([1, 2, 3], [b"same", b"other", b"same"])
    before = blocks.num_forgotten
    blocks.clear()
    assert (len(blocks), blocks.num_forgotten - before) == (0, 2)
