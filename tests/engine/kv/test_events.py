"""KV events: a reader that applies them knows what can be found, and can make every digest again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.cache.hashing.block_hash import DIGEST_BYTES, SHA256
from mmcached.cache.hashing.block_keys import LoraKey
from mmcached.engine import KVCacheManager, Request
from mmcached.engine.kv.events import PublishedLog
from mmcached.engine.kv.request_hashes import RequestHashes
from mmcached.wire.messages.kv_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
    KVEventBatch,
    salt_name,
)
from tests.engine.builders import generate, image
from tests.engine.kv.builders import Spec, config_of, content_key, manager_of
from tests.engine.kv.event_reader import Reader, digests_of

SALT = "the salt of a tenant that is a secret"
SALTS = {salt_name(SALT): SALT}
BLOCK = 4


def log_of(*specs: Spec) -> PublishedLog:
    config = config_of(100, *(specs or (BLOCK,)))
    return PublishedLog(config, RequestHashes(SHA256, config.hash_block_size))


def hashed(request_id: int, num_blocks: int, block_size: int = BLOCK) -> Request:
    """Return a request of so many full blocks, with all digests made."""
    request = generate(request_id, num_blocks * block_size)
    SHA256.extend_block_hashes(request, block_size)
    return request


def stored(events: Sequence[KVEvent]) -> list[BlockStored]:
    return [event for event in events if isinstance(event, BlockStored)]


def removed(events: Sequence[KVEvent]) -> list[BlockRemoved]:
    return [event for event in events if isinstance(event, BlockRemoved)]


def published(manager: KVCacheManager) -> set[tuple[int, bytes]]:
    """Return (group, digest) of all that the pool can find."""
    keys = map(manager.block_pool.block_key, range(manager.block_pool.num_blocks))
    return {(int.from_bytes(key[DIGEST_BYTES:], "little"), key[:DIGEST_BYTES]) for key in keys if key is not None}


# --- what the log makes of what it is told


def test_a_run_is_one_event_with_all_that_its_digests_are_made_of() -> None:
    log, request = log_of(), hashed(1, 5)
    log.stored(request, 0, 2, request.block_hashes[2:5])
    assert log.take_events() == [
        BlockStored(
            block_hashes=[*request.block_hashes[2:5]],
            parent_block_hash=request.block_hashes[1],
            token_ids=request.token_ids[8:20],
            block_size=4,
            lora_id=None,
            medium="GPU",
            lora_name=None,
            group_idx=0,
            kv_cache_spec_kind="full_attention",
            first_block=2,
            hash_algorithm="sha256",
        )
    ]
    assert log.take_events() == [], "taken is forgotten"


def test_tokens_that_come_later_change_nothing() -> None:
    """Events are made when they are taken; a request goes on meanwhile."""
    log, request = log_of(), hashed(1, 2)
    prompt = list(request.token_ids)
    log.stored(request, 0, 0, request.block_hashes[:])
    request.append_output_token(7)
    assert stored(log.take_events())[0].token_ids == prompt


def test_the_parent_of_a_run_is_known_though_its_request_has_forgotten_its_digests() -> None:
    log, request = log_of(), hashed(1, 3)
    digests, request.block_hashes = request.block_hashes, []
    log.stored(request, 0, 1, digests[1:])
    assert stored(log.take_events())[0].parent_block_hash == digests[0]


def test_all_that_was_removed_from_a_group_is_one_event() -> None:
    log = log_of(BLOCK, (BLOCK, 8), BLOCK)
    digests = hashed(1, 3).block_hashes
    log.removed([content_key(digests[0], 2), content_key(digests[1], 0)])
    log.removed([content_key(digests[2], 2)])
    told = {event.group_idx: event.block_hashes for event in removed(log.take_events())}
    assert told == {0: [digests[1]], 2: [digests[0], digests[2]]}


def test_of_a_group_that_is_not_the_first_the_digests_are_told_and_its_kind() -> None:
    log, request = log_of(8, (BLOCK, 12)), hashed(1, 4)
    log.stored(request, 1, 1, [content_key(digest, 1) for digest in request.block_hashes[1:3]])
    log.stored(request, 0, 1, request.block_hashes[3:4])
    window, full = stored(log.take_events())
    assert (window.block_hashes, window.group_idx) == (request.block_hashes[1:3], 1)
    assert (window.kv_cache_spec_kind, window.kv_cache_spec_sliding_window) == ("sliding_window", 12)
    assert (window.block_size, window.hash_block_size, window.first_block) == (4, None, 1)
    assert (full.kv_cache_spec_kind, full.kv_cache_spec_sliding_window) == ("full_attention", None)
    assert (full.block_size, full.hash_block_size, full.first_block) == (8, 4, 1)
    assert full.parent_block_hash == request.block_hashes[1], "the digest before the block, not the block before"
    assert full.token_ids == request.token_ids[8:16]


# --- netting


CHANGES = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), max_size=8)


@given(changes=CHANGES, known=st.sets(st.integers(0, 5)))
def test_whatever_comes_and_goes_the_outcome_is_told(changes: list[list[int]], known: set[int]) -> None:
    """Contents toggle in any order: one that is there goes, one that is not comes."""
    request, log, reader = hashed(1, 6), log_of(), Reader()
    reader.known = {(0, request.block_hashes[index]) for index in known}
    now = set(known)
    for indices in changes:
        for index in indices:
            if index in now:
                log.removed([request.block_hashes[index]])
            else:
                log.stored(request, 0, index, request.block_hashes[index : index + 1])
        now ^= set(indices)
    events = log.take_events()
    reader.apply(events)
    assert reader.known == {(0, request.block_hashes[index]) for index in now}
    for event in stored(events):
        assert digests_of(event) == event.block_hashes


# --- what the manager tells


def test_what_a_step_reserves_is_not_told_until_it_is_committed() -> None:
    manager = manager_of(10, enable_kv_cache_events=True)
    for step, ending in enumerate([manager.withdraw, manager.commit]):
        request = generate(step, [7] * 40)
        manager.begin_step(step)
        assert manager.allocate_slots(request, 40)
        manager.launch_step(step)
        assert manager.take_events() == []
        ending(step)
        assert len(stored(manager.take_events())) == step
        manager.free(request)


def test_events_that_are_off_are_nothing() -> None:
    manager = manager_of(10)
    assert manager.allocate_slots(generate(1, 40), 40)
    assert manager.take_events() == []


# --- making the digests again

RICH = {
    "plain": {},
    "adapter": {"lora": LoraKey("an adapter", "/where/it/lies")},
    "salt": {"tenant": SALT},
    "rows": {"prompt_embeds": {position: bytes([position]) * 8 for position in (0, 5, 16, 40, 41)}},
    "all": {
        "lora": LoraKey(salt_name(SALT), ""),  # named to be taken for a salt
        "tenant": SALT,
        "prompt_embeds": {33: b"digest of a row"},
    },
}


def rich_request(name: str, *, has_items: bool) -> Request:
    features = [image("a" * 64, 3, 9), image("b" * 64, 14, 20), image("c" * 64, 48, 5)] if has_items else []
    return Request(
        1,
        "generate",
        range(100, 170),
        features,
        max_tokens=1,
        **RICH[name],  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("has_items", [False, True])
@pytest.mark.parametrize("num_lookahead", [0, 1, 5])
@pytest.mark.parametrize("specs", [(8,), (16, (8, 24)), ((12, 24), 8)], ids=str)
@pytest.mark.parametrize("name", RICH)
def test_every_digest_can_be_made_again(
    name: str, specs: tuple[Spec, ...], num_lookahead: int, has_items: bool
) -> None:
    manager = manager_of(50, *specs, enable_kv_cache_events=True, num_hash_lookahead_tokens=num_lookahead)
    request = rich_request(name, has_items=has_items)
    told: list[KVEvent] = []
    for num_tokens in (33, 20, 17):  # runs begin and end anywhere
        assert manager.allocate_slots(request, num_tokens)
        request.num_computed_tokens += num_tokens
        told += [msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=KVEvent) for event in manager.take_events()]
    assert {event.group_idx for event in stored(told)} == set(range(len(specs)))
    for event in stored(told):
        assert digests_of(event, SALTS) == event.block_hashes


def test_a_salt_is_never_told() -> None:
    manager = manager_of(50, enable_kv_cache_events=True)
    request = rich_request("salt", has_items=True)
    assert manager.allocate_slots(request, request.num_tokens)
    (event,) = stored(manager.take_events())
    payload = msgspec.msgpack.encode(KVEventBatch(0.0, [event]))
    assert salt_name(SALT).encode() in payload
    assert SALT.encode() not in payload
    with pytest.raises(KeyError):
        digests_of(event)
    # Who does not know the salt goes on from the digest that it was told.
    rest = msgspec.structs.replace(
        event,
        parent_block_hash=event.block_hashes[0],
        token_ids=event.token_ids[16:],
        extra_keys=(event.extra_keys or [])[1:],
    )
    assert digests_of(rest) == event.block_hashes[1:]


# --- over whole histories


class History:
    """Random requests that share prefixes, through the seed's face and through steps; events are taken now and then."""

    def __init__(self, seed: int, specs: tuple[Spec, ...]) -> None:
        self.random = random.Random(seed)
        self.manager = manager_of(24, *specs, enable_kv_cache_events=True)
        self.reader = Reader()
        self.running: list[Request] = []
        self.num_requests = 0
        self.num_steps = 0
        self.seen: Counter[str] = Counter()

    def run(self, num_actions: int) -> None:
        actions = [self.admit] * 6 + [self.grow] * 4 + [self.free] * 4 + [self.step] * 4 + [self.clear, self.take]
        for _ in range(num_actions):
            self.random.choice(actions)()
            if self.random.random() < 0.3:
                self.take()
        self.take()

    def admit(self) -> None:
        tokens = [self.random.choice((0, 0, 1)) for _ in range(self.random.randint(1, 7)) for _ in range(4)]
        self.num_requests += 1
        skip = self.random.random() < 0.3
        request = generate(self.num_requests, tokens, max_tokens=99, skip_reading_prefix_cache=skip)
        blocks, num_hit = self.manager.get_computed_blocks(request)
        if self.manager.allocate_slots(request, len(tokens) - num_hit, num_hit, blocks) is not None:
            request.num_computed_tokens = len(tokens)
            self.running.append(request)

    def grow(self) -> None:
        for request in self.running:
            request.append_output_token(self.random.randint(0, 1))
            if self.manager.allocate_slots(request, 1) is None:
                request.token_ids.pop()
            else:
                request.num_computed_tokens += 1

    def free(self) -> None:
        if self.running:
            request = self.running.pop(self.random.randrange(len(self.running)))
            self.manager.free(request)
            if self.random.random() < 0.5:
                self.manager.free_block_hashes(request)

    def step(self) -> None:
        self.num_steps += 1
        before = list(self.running)
        self.manager.begin_step(self.num_steps)
        for _ in range(3):
            self.admit()
        self.manager.launch_step(self.num_steps)
        if self.random.random() < 0.3:
            self.free()
        if self.random.random() < 0.7:
            self.manager.commit(self.num_steps)
            return
        for request in [request for request in self.running if request not in before]:
            self.running.remove(request)
            self.manager.free(request)
        self.manager.withdraw(self.num_steps)

    def clear(self) -> None:
        if self.random.random() < 0.3:
            self.manager.new_epoch()
        elif not self.running:
            assert self.manager.reset_prefix_cache()

    def take(self) -> None:
        events = self.manager.take_events()
        for event in stored(events):
            assert digests_of(event) == event.block_hashes
            self.seen["parts of a request"] += bool(event.first_block)
        self.reader.apply(events)
        assert self.reader.known == published(self.manager)
        kinds = [type(event) for event in events]
        groups = [event.group_idx for event in removed(events)]
        assert len(groups) == len(set(groups)), "one removal for each group"
        self.seen["both"] += bool(removed(events)) and bool(stored(events))
        self.seen["cleared"] += AllBlocksCleared in kinds
        self.seen["copies"] += self.manager.block_pool.num_published > len(self.reader.known)


@pytest.mark.parametrize("specs", [(4,), (4, (4, 8)), ((4, 8), 8)], ids=str)
def test_a_reader_always_knows_what_can_be_found(specs: tuple[Spec, ...]) -> None:
    seen: Counter[str] = Counter()
    for seed in range(15):
        history = History(seed, specs)
        history.run(80)
        seen += history.seen
    assert min(seen[what] for what in ("parts of a request", "both", "cleared", "copies")) >= 15, seen
