"""What an engine tells of its caches, and what the frontend knows then: the same, whatever is lost on the way."""

from __future__ import annotations

import random

import pytest

from mmcached.compat.kv_cache_manager import KVCacheManager
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.server.held_content import ContentReporter as Told
from mmcached.engine.steps.request import Request
from mmcached.gateway.engines.engine_content import EngineContent as Known
from mmcached.wire.errors import ChannelFull, RemoteProtocolError
from mmcached.wire.messages.frontend_from_engines import CacheChanged

BLOCK_SIZE, NUM_BLOCKS = 2, 24
ITEMS = ("a", "b", "c", "d")


class Wire:
    """Takes every message but those that it is told to refuse."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.is_full = False
        self.messages: list[CacheChanged] = []

    def send(self, message: CacheChanged) -> None:
        if self.is_full:
            raise ChannelFull("the frontend")
        self.messages.append(message)
        self.known.take(message)


@pytest.mark.parametrize("seed", range(20))
def test_the_frontend_knows_what_a_lookup_would_find(seed: int) -> None:
    rng = random.Random(seed)
    config = KVCacheConfig.of_one_group(NUM_BLOCKS, BLOCK_SIZE)
    manager = KVCacheManager(config, max_model_len=64, enable_kv_cache_events=True)
    told, wire = Told(), Wire(Known(NUM_BLOCKS, len(ITEMS)))
    running: list[Request] = []
    for number in range(200):
        request = Request(number, "generate", rng.choices(range(2), k=rng.randint(1, 16)), (), max_tokens=1)
        hit, num_hit = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, request.num_tokens - num_hit, num_hit, hit) is not None:
            running.append(request)
        if running and rng.random() < 0.6:
            manager.free(running.pop(rng.randrange(len(running))))
        if not running and rng.random() < 0.2:
            assert manager.reset_prefix_cache()
        items = set(rng.sample(ITEMS, rng.randint(0, len(ITEMS))))
        told.note(manager.take_events(), items)
        if rng.random() < 0.1:
            wire.known = Known(NUM_BLOCKS, len(ITEMS))  # another frontend
            told.forget_frontend()
        wire.is_full = rng.random() < 0.1
        told.tell(wire.send)
        if wire.is_full:
            continue
        asked = Request(-1 - number, "generate", rng.choices(range(2), k=rng.randint(1, 16)), (), max_tokens=1)
        _, num_found = manager.get_computed_blocks(asked)
        hashes = asked.block_hashes[: (asked.num_tokens - 1) // BLOCK_SIZE]
        assert wire.known.num_blocks_of(hashes) * BLOCK_SIZE == num_found
        assert {item for item in ITEMS if wire.known.has_item(item)} == items
        num_messages = len(wire.messages)
        told.tell(wire.send)
        assert len(wire.messages) == num_messages, "it knows all"
    assert {message.is_all for message in wire.messages} == {True, False}


def test_more_than_an_engine_can_hold_is_refused_and_forgotten() -> None:
    known = Known(2, 1)
    known.take(CacheChanged(True, [b"1", b"2"], [], ["a"]))
    known.take(CacheChanged(False, [b"3"], [b"1"], ["b"], ["a"]))
    assert (known.num_blocks_of([b"2", b"3", b"1"]), known.has_item("b")) == (2, True)
    for change in (CacheChanged(False, [b"4"]), CacheChanged(True, [], [], ["a", "b"])):
        with pytest.raises(RemoteProtocolError, match="of 2 blocks and 1 items"):
            known.take(change)
        assert (known.num_blocks_of([b"2"]), known.has_item("b")) == (0, False)
        known.take(CacheChanged(True, [b"2", b"3"], [], ["b"]))
