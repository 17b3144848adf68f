"""The pool and a naive model of it, led through the same histories; callers make mistakes too.

Whatever happens, all that can be asked of the pool is what the model says. The histories of the plain loop are the same
each time, and contain every situation; those of Hypothesis are new, and end with the shortest one that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.wire.errors import InvariantError, LocalProtocolError
from tests.engine.kv.integrity import check_pool
from tests.engine.kv.naive_pool import NaivePool
from tests.house.drawing import examples

NUM_BLOCKS = 9  # with the null block
KEYS = [b"key %d" % number for number in range(12)]


class RemovedKeys:
    """A log that counts."""

    def __init__(self) -> None:
        self.counts: Counter[bytes] = Counter()

    def removed(self, keys: list[bytes]) -> None:
        self.counts.update(keys)

    def cleared(self) -> None:
        """The model knows."""


class Pair:
    """A pool, its model, and those who hold blocks.

    Attributes:
        tables: one list of blocks for each holder.
        unpublished: all blocks that the pool has said to have lost their content, in this order.
        seen: how often each situation has occurred.
    """

    def __init__(self) -> None:
        self.log = RemovedKeys()
        self.pool = BlockPool(NUM_BLOCKS, log=self.log)
        self.model = NaivePool(NUM_BLOCKS)
        self.tables: list[list[int]] = []
        self.unpublished: list[int] = []
        self.pool.on_unpublished = self.unpublished.extend
        self.seen: Counter[str] = Counter()
        self._found: dict[bytes, int | None] = dict.fromkeys(KEYS)
        self._num_forgotten = 0
        self._num_unpublished = 0

    def actions(self) -> list[Callable[[Random], None]]:
        rare = [self.share, self.unpublish_all, self.free_wrongly, self.publish_wrongly]
        return [*3 * [self.get], *4 * [self.free], *3 * [self.publish], *rare]

    def get(self, rng: Random) -> None:
        num_blocks = rng.randrange(5)
        if num_blocks > len(self.model.free):
            self.seen["refusal"] += 1
            with pytest.raises(LocalProtocolError):
                self.pool.get_new_blocks(num_blocks)
            return
        expected = self.model.get(num_blocks)
        assert self.pool.get_new_blocks(num_blocks) == expected
        self.tables.append(expected)
        self.seen["eviction"] += len(self.model.unpublished) > self._num_unpublished

    def free(self, rng: Random) -> None:
        if not self.tables:
            return
        block_ids = self.tables.pop(rng.randrange(len(self.tables)))[::-1]
        if rng.randrange(2):
            rng.shuffle(block_ids)
        tiers = {self.model.key_of(block_id) is None for block_id in block_ids if block_id}
        self.seen["free into both tiers"] += len(tiers) == 2
        self.seen["free of shared blocks"] += any(self.model.refs[block_id] > 1 for block_id in block_ids)
        self.pool.free_blocks(block_ids)
        self.model.free_blocks(block_ids)

    def publish(self, rng: Random) -> None:
        block_ids = self._publishable()
        rng.shuffle(block_ids)
        block_ids = block_ids[: rng.randrange(5)]
        keys = [rng.choice(KEYS) for _ in block_ids]
        copies = self.model.publish(block_ids, keys)
        self.seen["copy"] += bool(copies)
        self.seen["copy within one call"] += len(set(keys)) < len(keys)
        assert list(self.pool.publish(block_ids, keys)) == copies

    def share(self, rng: Random) -> None:
        found = sorted({block_id for key in KEYS if (block_id := self.model.find(key)) is not None})
        rng.shuffle(found)
        block_ids = [NULL_BLOCK_ID] * rng.randrange(3) + found[: rng.randrange(5)]
        num_free = sum(block_id in self.model.free for block_id in block_ids)
        self.seen["revival"] += num_free > 0
        self.seen["sharing"] += num_free < sum(map(bool, block_ids))
        assert self.pool.num_unreferenced(block_ids) == num_free
        self.pool.touch(block_ids)
        self.model.touch(block_ids)
        self.tables.append(block_ids)

    def unpublish_all(self, rng: Random) -> None:
        if rng.randrange(4) == 0:
            self.pool.unpublish_all()
            self.model.unpublish_all()

    def free_wrongly(self, rng: Random) -> None:
        block_ids = [block_id for table in self.tables for block_id in table]
        block_ids.append(rng.choice([*self.model.free, *filter(None, block_ids)]))
        rng.shuffle(block_ids)
        self.seen["freed wrongly"] += 1
        with pytest.raises(InvariantError):
            self.pool.free_blocks(block_ids)

    def publish_wrongly(self, rng: Random) -> None:
        block_ids = self._publishable()
        block_ids.append(rng.choice([NULL_BLOCK_ID, *self.model.free, *(each for _, each in self.model.contents)]))
        rng.shuffle(block_ids)
        self.seen["published wrongly"] += 1
        with pytest.raises(InvariantError):
            self.pool.publish(block_ids, KEYS[: len(block_ids)])

    def check(self) -> None:
        """Compare all that can be asked."""
        pool, model, all_ids = self.pool, self.model, range(NUM_BLOCKS)
        check_pool(pool, self.tables)
        assert pool.free_order() == model.free
        assert (pool.num_free, pool.num_held) == (len(model.free), NUM_BLOCKS - 1 - len(model.free))
        assert [pool.ref_cnt(block_id) for block_id in all_ids] == [model.refs[block_id] for block_id in all_ids]
        assert [pool.block_key(block_id) for block_id in all_ids] == [model.key_of(block_id) for block_id in all_ids]
        assert pool.num_published == len(model.contents)
        assert self.log.counts == Counter(model.removed)
        assert set(model.unpublished) <= set(self.unpublished)
        self._check_lookups()

    def _check_lookups(self) -> None:
        before, self._found = self._found, {key: self.model.find(key) for key in KEYS}
        found = {key: block_id for key, block_id in self._found.items() if block_id is not None}
        assert {key: self.pool.find(key) for key in KEYS} == self._found
        num_in_front = next((index for index, key in enumerate(KEYS) if key not in found), len(KEYS))
        assert self.pool.find_prefix(KEYS) == [found[key] for key in KEYS[:num_in_front]]
        lost = [key for key, block_id in before.items() if block_id not in (None, self._found[key])]
        self.seen["copy takes over"] += any(key in found for key in lost)
        assert (self.pool.num_forgotten > self._num_forgotten) == bool(lost)
        self._num_forgotten, self._num_unpublished = self.pool.num_forgotten, len(self.model.unpublished)

    def _publishable(self) -> list[int]:
        held = sorted({block_id for table in self.tables for block_id in table if block_id})
        return [block_id for block_id in held if self.model.key_of(block_id) is None]


def test_histories_with_every_situation() -> None:
    seen: Counter[str] = Counter()
    for seed in range(20):
        rng, pair = Random(seed), Pair()
        for _ in range(200):
            rng.choice(pair.actions())(rng)
            pair.check()
        seen += pair.seen
    assert (len(seen), min(seen.values()) >= 20) == (11, True), seen


class AnyHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(rng=st.randoms(use_true_random=False), number=st.integers(0, len(Pair().actions()) - 1))
    def act(self, rng: Random, number: int) -> None:
        self.pair.actions()[number](rng)

    @invariant()
    def both_say_the_same(self) -> None:
        self.pair.check()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=examples(50), stateful_step_count=40)
