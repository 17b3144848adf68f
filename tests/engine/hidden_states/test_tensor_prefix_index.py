"""TensorPrefixIndex: random schedules beside a plain worker, then case by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from mmcached.cache.hashing.block_hash import extend_block_hashes
from mmcached.engine import Request, RequestStatus
from mmcached.engine.hidden_states.listed_rows import Report
from mmcached.engine.hidden_states.tensor_prefix_index import NewBlockHashes, TensorPrefixIndex
from mmcached.wire.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from mmcached.wire.messages.parts import RowsWanted
from tests.engine.prefix_world import ACTIONS, NUMBERS, Setting, World, lead
from tests.house.drawing import examples

SETTINGS = st.builds(Setting, st.integers(1, 4), st.sampled_from([1000, 1000, 3]))
EVERYWHERE = [
    *ACTIONS,
    *("hit", "hit within a block", "hit on what is only reserved"),
]


class IndexBesideWorker(RuleBasedStateMachine):
    @initialize(setting=SETTINGS)
    def start(self, setting: Setting) -> None:
        self.world = World(setting)

    @rule(action=st.sampled_from(list(ACTIONS)), number=st.integers(0, NUMBERS - 1))
    def act(self, action: str, number: int) -> None:
        self.world.do(action, number)


IndexBesideWorker.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=40)
TestIndexBesideWorker = IndexBesideWorker.TestCase


def test_long_histories_reach_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(25):
        seen += lead(seed, 300)
    assert {what: seen[what] for what in EVERYWHERE if seen[what] < 5} == {}


@pytest.mark.soak
def test_histories_for_minutes(draw_seeds: Callable[[int], range]) -> None:
    for seed in draw_seeds(5000):
        lead(seed, 300)


# ---- cases that the worlds do not reach, or do not compare

BLOCK = 4
HIDDEN = ("hidden_states",)
PROMPT = list(range(1, 20))


def make_index(max_blocks: int = 100) -> TensorPrefixIndex:
    return TensorPrefixIndex(BLOCK, max_blocks=max_blocks)


def a_request(request_id: int, prompt: list[int] | None = None) -> Request:
    request = Request(request_id, "generate", prompt or PROMPT, [], max_tokens=9, rows=RowsWanted())
    extend_block_hashes(request, BLOCK)
    return request


def write(index: TensorPrefixIndex, request: Request, step_id: int, *, end: int = 19) -> None:
    """Have a request computed from token 0 to `end` in a step of its own, and reported so."""
    index.begin_step(step_id)
    index.reserve(request, 0, end, written=HIDDEN)
    full = [(digest, BLOCK) for digest in request.block_hashes[: end // BLOCK]]
    part = [(digest, end % BLOCK) for digest in request.block_hashes[end // BLOCK : end // BLOCK + 1]]
    index.commit(step_id, {digest: {"hidden_states": num} for digest, num in full + part})


def test_a_hit_of_any_length_is_clamped_to_what_is_there() -> None:
    index, writer = make_index(), a_request(0)
    assert index.usable_prefix(writer, 16, HIDDEN) == 0
    write(index, writer, 0, end=10)
    reader = a_request(1)
    assert [index.usable_prefix(reader, num, HIDDEN) for num in (4, 8, 9, 10, 11, 16)] == [4, 8, 9, 10, 10, 10]
    assert index.usable_prefix(reader, 16, ()) == 16
    assert index.usable_prefix(reader, 16, ("codes",)) == 0
    assert index.usable_prefix(reader, 16, ("hidden_states", "codes")) == 0
    assert index.usable_prefix(a_request(2, [7, 7, 7, 7, 7]), 4, HIDDEN) == 0


def test_a_block_that_has_no_digest_yet_is_not_usable() -> None:
    index, writer = make_index(), a_request(0)
    write(index, writer, 0, end=16)
    assert len(writer.block_hashes) == 4
    assert index.usable_prefix(a_request(1), 18, HIDDEN) == 16


def test_a_withdrawn_step_is_believed_what_it_lost_and_nothing_else() -> None:
    index, writer = make_index(), a_request(0)
    write(index, writer, 0, end=8)
    index.begin_step(1)
    index.withdraw(1, {writer.block_hashes[1]: {"hidden_states": 1}, writer.block_hashes[2]: {"hidden_states": 4}})
    assert index.usable_prefix(a_request(1), 16, HIDDEN) == 5
    assert index.stats().blocks == 2


def test_a_withdrawn_step_adds_no_rows_to_a_block_that_is_listed() -> None:
    index, writer = make_index(), a_request(0)
    write(index, writer, 0, end=6)
    index.begin_step(1)
    index.withdraw(1, {writer.block_hashes[1]: {"hidden_states": 4}})
    assert index.usable_prefix(a_request(1), 16, HIDDEN) == 6


def test_rows_of_a_step_that_is_open_can_be_counted_on() -> None:
    index, writer, reader = make_index(), a_request(0), a_request(1)
    write(index, writer, 6, end=3)
    index.begin_step(7)
    index.reserve(writer, 3, 6, written=HIDDEN)
    assert index.usable_prefix(reader, 16, HIDDEN) == 9
    index.reserve(reader, 9, 10, written=HIDDEN, needed=HIDDEN)
    assert index.usable_prefix(a_request(2), 16, HIDDEN) == 16
    assert index.stats().reserved == 5
    index.withdraw(7)
    assert index.usable_prefix(reader, 16, HIDDEN) == 3
    index.begin_step(8)
    index.reserve(writer, 3, 6, written=HIDDEN)
    index.commit(8, {})
    assert index.usable_prefix(reader, 16, HIDDEN) == 3


def test_who_takes_part_in_a_step_is_not_released_before_its_end() -> None:
    index, writer, reader = make_index(), a_request(0), a_request(1)
    index.begin_step(0)
    index.reserve(writer, 0, 8, written=HIDDEN)
    with pytest.raises(LocalProtocolError, match="request 0 takes part in the open step"):
        index.release(writer)
    assert index.usable_prefix(reader, 16, HIDDEN) == 8
    index.reserve(reader, 8, 8, written=HIDDEN, needed=HIDDEN)
    index.withdraw(0)
    assert index.holders() == set()
    index.begin_step(1)
    assert sorted(index.take_released()) == [0, 1]


def test_a_worker_is_told_each_digest_once_and_again_after_a_withdrawal() -> None:
    index, request = make_index(), a_request(0)
    index.begin_step(0)
    assert index.reserve(request, 0, 6, written=HIDDEN) == NewBlockHashes(0, request.block_hashes[:2])
    index.commit(0, {})
    index.begin_step(1)
    assert index.reserve(request, 6, 1, written=HIDDEN) == NewBlockHashes(2, [])
    index.withdraw(1)
    index.begin_step(2)
    assert index.reserve(request, 6, 6, written=HIDDEN) == NewBlockHashes(0, request.block_hashes[:3])


def test_releases_are_told_until_a_step_with_them_is_committed() -> None:
    index, first, second = make_index(), a_request(0), a_request(1)
    index.begin_step(0)
    index.reserve(first, 0, 4, written=HIDDEN)
    index.reserve(second, 0, 4, written=HIDDEN)
    index.commit(0, {})
    index.release(first)
    index.release(first)
    with pytest.raises(LocalProtocolError, match="begin one first"):
        index.take_released()
    index.begin_step(1)
    assert index.take_released() == [0]
    index.release(second)
    assert index.take_released() == [1]
    assert index.take_released() == []
    index.withdraw(1)
    index.begin_step(2)
    assert index.take_released() == [0, 1]
    index.commit(2, {})
    index.begin_step(3)
    assert index.take_released() == []


def test_who_lacked_rows_counts_only_on_what_is_listed_from_then_on() -> None:
    index, writer, unlucky, other = make_index(), a_request(0), a_request(1), a_request(2)
    write(index, writer, 0, end=16)
    index.note_missing(unlucky, "hidden_states", 9)
    assert index.usable_prefix(other, 16, HIDDEN) == 9
    index.begin_step(1)
    index.reserve(writer, 9, 7, written=HIDDEN)
    assert index.usable_prefix(other, 16, HIDDEN) == 16
    assert index.usable_prefix(unlucky, 16, HIDDEN) == 9
    unlucky.status = RequestStatus.ABORTED
    index.release(unlucky)
    assert index.usable_prefix(unlucky, 16, HIDDEN) == 16


def test_steps_do_not_overlap() -> None:
    index = make_index()
    with pytest.raises(LocalProtocolError, match="begin one first"):
        index.reserve(a_request(0), 0, 1, written=HIDDEN)
    index.begin_step(3)
    with pytest.raises(LocalProtocolError, match="cannot begin"):
        index.begin_step(4)
    for end in (index.withdraw, lambda step_id: index.commit(step_id, {})):
        with pytest.raises(LocalProtocolError, match="the open step is 3"):
            end(4)
    index.commit(3, {})
    index.begin_step(4)


@pytest.mark.parametrize(
    "report",
    [
        {b"short": {}},
        {bytes(32): {"hidden_states": 5}},
        {bytes(32): {"hidden_states": -1}},
        {bytes(32): {"hidden_states": 1.5}},
        {bytes(32): {"hidden_states": 4.0}},
        {bytes(32): {"hidden_states": True}},
        {bytes(32): {"hidden_states": "4"}},
        {bytes(32): {"hidden_states": None}},
        {bytes(32): {7: 4}},
        {bytes(32): None},
        {bytes(32): 4},
        {"x" * 32: {"hidden_states": 4}},
        {7: {}},
        {None: {}},
        [1],
        "report",
        7,
        [b"x" * 32],
    ],
)
def test_a_report_that_cannot_be_changes_nothing(report: Any) -> None:
    index, writer = make_index(), a_request(0)
    write(index, writer, 0)
    index.begin_step(1)
    good: Report = {writer.block_hashes[0]: {}}
    for take in (index.commit, index.withdraw):
        with pytest.raises(RemoteProtocolError):
            take(1, {**good, **report} if isinstance(report, dict) else report)
    assert index.stats().blocks == 4
    index.commit(1, good)


def test_blocks_reported_longest_ago_are_dropped_for_room_and_listed_when_they_are_told_again() -> None:
    index, old, new = make_index(max_blocks=4), a_request(0), a_request(1, [9] * 8)
    write(index, old, 0, end=16)
    write(index, new, 1, end=8)
    assert index.usable_prefix(a_request(2), 16, HIDDEN) == 0
    assert index.usable_prefix(new, 8, HIDDEN) == 8
    assert (index.stats().blocks, index.stats().dropped) == (4, 2)
    write(index, old, 2, end=16)
    assert index.usable_prefix(a_request(2), 16, HIDDEN) == 16


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_sizes_are_at_least_one(sizes: tuple[int, int]) -> None:
    with pytest.raises(ConfigError):
        TensorPrefixIndex(sizes[0], max_blocks=sizes[1])
