"""Kinds of layers beside full attention and windows: what is found, held, published, counted and refused of each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mmcached.compat.kv_cache_manager import KVCacheManager
from mmcached.engine import EncoderCacheManager, Feature, Request
from mmcached.engine.kv.config import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mmcached.wire.errors import ConfigError, LocalProtocolError
from mmcached.wire.messages.kv_events import BlockStored
from mmcached.wire.messages.parts import Inline
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    NULL,
    Spec,
    admit_to_groups,
    manager_of,
    num_hit_tokens,
    plant,
    tables,
)
from tests.engine.kv.integrity import check_kv

CHUNKED = ChunkedLocalAttentionSpec(2, 4)
ALIGN = MambaSpec(4, "align")


def compute(manager: KVCacheManager, request: Request, *ends: int) -> None:
    """Compute a request's tokens in chunks that end at these places."""
    for end in ends:
        assert manager.allocate_slots(request, end - request.num_computed_tokens) is not None
        request.num_computed_tokens = end
        check_kv(manager)


# ---- chunked local attention


@pytest.mark.parametrize(
    ("pattern", "num_found"),
    [
        ("T", 1),
        ("TF", 2),
        ("TT", 2),
        ("TTF", 2),
        ("TTT", 3),
        ("TTTF", 4),
        ("TFTFTFTFT", 9),
        ("TFTFTFTFF", 8),
        ("FFFFFFFFTT", 10),
        ("FFFFFFFFFT", 10),
    ],
)
def test_a_hit_needs_what_is_cached_of_its_chunk_only(pattern: str, num_found: int) -> None:
    """The table of vLLM's tests for chunks of two blocks. The prompt has one more token, which is always computed."""
    manager, request = manager_of(40, CHUNKED), generate(0, range(2 * len(pattern) + 1))
    plant(manager, request, pattern)
    (found,), num_tokens = tables(manager.get_computed_blocks(request)[0]), num_hit_tokens(manager, request)
    assert num_tokens == 2 * num_found
    assert [block_id == NULL for block_id in found] == [position < num_found // 2 * 2 for position in range(num_found)]


def test_blocks_of_an_earlier_chunk_are_freed() -> None:
    manager, request = manager_of(20, CHUNKED), generate(0, range(13))
    held = []
    for end in (3, 4, 6, 9, 13):
        compute(manager, request, end)
        held.append(sum(map(bool, manager.get_block_ids(0)[0])))
    assert held == [2, 2, 1, 3, 3]
    manager.remove_skipped_blocks(request, 12)
    assert sum(map(bool, manager.get_block_ids(0)[0])) == 1


# ---- Mamba


def test_a_chunk_keeps_one_state_and_a_hit_takes_the_last() -> None:
    manager, request = manager_of(20, ALIGN), generate(0, range(18))
    compute(manager, request, 12, 16)
    assert manager.get_block_ids(0) == ([0, 0, 1, 2],)
    compute(manager, request, 18)
    assert manager.get_block_ids(0) == ([0, 0, 0, 2, 3],)
    assert num_hit_tokens(manager, generate(1, range(18))) == 16
    assert num_hit_tokens(manager, generate(2, range(16))) == 12  # freed, and still there
    assert num_hit_tokens(manager, generate(3, range(11))) == 0  # no chunk ended at 4 or 8


def test_a_state_that_a_chunk_has_run_past_is_not_published() -> None:
    manager, request = manager_of(20, ALIGN), generate(0, range(18))
    compute(manager, request, 6, 10, 12)  # the block of tokens 4 to 7 held the state after 6
    assert num_hit_tokens(manager, generate(1, range(18))) == 12
    assert num_hit_tokens(manager, generate(2, range(11))) == 0


def test_in_mode_all_every_block_end_is_found() -> None:
    manager, request = manager_of(20, MambaSpec(4, "all")), generate(0, range(18))
    compute(manager, request, 18)
    assert [num_hit_tokens(manager, generate(1, range(end))) for end in (18, 16, 11, 5, 4)] == [16, 12, 8, 4, 0]


def test_without_caching_one_state_is_held() -> None:
    manager, request = manager_of(20, MambaSpec(1000, "none", 2), enable_caching=False), generate(0, range(18))
    compute(manager, request, 7, 17)
    assert manager.get_block_ids(0) == ([1, 2, 3],)


def test_draft_states_move_to_the_end_of_a_table_that_grows() -> None:
    manager, request = manager_of(20, MambaSpec(4, "align", 2)), generate(0, range(40))
    compute(manager, request, 4)
    assert manager.get_block_ids(0) == ([1, 2, 3],)
    compute(manager, request, 8)
    assert manager.get_block_ids(0) == ([1, 2, 3, 4],)
    compute(manager, request, 32)
    assert manager.get_block_ids(0) == ([0, 2, 0, 0, 0, 0, 0, 3, 4, 5],)


def test_a_request_waits_a_step_for_a_state_that_is_being_computed() -> None:
    manager, first, second = manager_of(20, 4, ALIGN), generate(0, range(9)), generate(1, range(9))
    manager.begin_step(1)
    manager.allocate_slots(first, 8)
    hit, num_hit = manager.get_computed_blocks(second)
    assert num_hit == 8
    assert manager.allocate_slots(second, 1, num_hit, hit) is None
    manager.commit(1)
    hit, num_hit = manager.get_computed_blocks(second)
    assert manager.allocate_slots(second, 1, num_hit, hit) is not None


def test_who_takes_part_in_a_withdrawn_step_starts_over() -> None:
    manager, request, other = manager_of(20, ALIGN), generate(0, range(9)), generate(1, range(100, 109))
    compute(manager, other, 4)
    manager.begin_step(1)
    manager.allocate_slots(request, 4)
    assert manager.withdraw(1) == [0]
    with pytest.raises(LocalProtocolError, match="free it"):
        manager.allocate_slots(request, 8)
    manager.free(request)
    compute(manager, other, 8)


@pytest.mark.parametrize(("start", "end", "expected"), [(0, 9, 8), (6, 15, 8), (8, 17, 16), (16, 18, 18), (0, 3, 3)])
def test_chunks_end_where_a_state_can_be_shared(start: int, end: int, expected: int) -> None:
    assert manager_of(20, ALIGN).chunk_end(generate(0, range(18)), start, end) == expected
    assert manager_of(20, 4).chunk_end(generate(0, range(18)), start, end) == end


def test_a_drafter_needs_no_state_behind_a_hit() -> None:
    manager = manager_of(40, 4, ALIGN, use_eagle=True)
    request = generate(0, range(14))
    compute(manager, request, 4, 8, 14)
    assert num_hit_tokens(manager, generate(1, range(14))) == 8


# ---- cross-attention


def test_encoder_outputs_have_their_table_from_the_first_step_on() -> None:
    manager = manager_of(20, 16, CrossAttentionSpec(4), enable_caching=False)
    request = generate(0, range(20))
    assert manager.num_blocks_to_allocate(request, 3, num_encoder_tokens=15) == 5
    assert tables(manager.allocate_slots(request, 3, num_encoder_tokens=15)) == ([1], [2, 3, 4, 5])
    request.num_computed_tokens = 3
    compute(manager, request, 4, 17)
    assert [len(table) for table in manager.get_block_ids(0)] == [2, 4]
    manager.free(request)
    assert manager.block_pool.num_held == 0


def test_outputs_that_come_later_get_their_blocks_then() -> None:
    manager, request = manager_of(20, 16, CrossAttentionSpec(4), enable_caching=False), generate(0, range(20))
    compute(manager, request, 3)
    assert tables(manager.allocate_slots(request, 1, num_encoder_tokens=5)) == ([], [2, 3])
    assert manager.allocate_slots(generate(1, range(4)), 4, num_encoder_tokens=100) is None


def test_an_encoder_decoder_is_served_by_both_managers() -> None:
    """What a scheduler does for a request with a sound: room for the encoder's outputs, then blocks, then decoding."""
    kv, encoder = manager_of(40, 4, CrossAttentionSpec(16), enable_caching=False), EncoderCacheManager(100)
    requests = [
        Request(number, "generate", [1, 2], [Feature("sound", "audio", 0, 60, 60, 0, Inline(0, 0))], max_tokens=9)
        for number in range(2)
    ]
    assert [encoder.can_allocate(request, 0) for request in requests] == [True, True]
    encoder.begin_step(1)
    encoder.allocate(requests[0], 0)
    assert not encoder.can_allocate(requests[1], 0)
    new = kv.allocate_slots(requests[0], 2, num_encoder_tokens=requests[0].features[0].num_embeds)
    assert [len(table) for table in tables(new)] == [1, 4]
    encoder.commit(1)
    for _ in range(2):
        encoder.free_encoder_input(requests[0], 0)  # used in the first step: free once, however often it is told
    assert encoder.can_allocate(requests[1], 0)
    kv.free(requests[0])
    assert kv.block_pool.num_held == 0


@pytest.mark.parametrize("spec", [CrossAttentionSpec(4), MambaSpec(4, "none")])
def test_caching_is_refused_for_layers_that_keep_nothing(spec: Spec) -> None:
    with pytest.raises(ConfigError, match="enable_caching"):
        manager_of(20, 4, spec)


# ---- MLA, sinks, context parallelism


def test_of_mla_and_sinks_only_the_page_size_differs() -> None:
    """The same history in pools of the same number of blocks: a manager knows no bytes."""
    attention, mla = manager_of(20, 16), manager_of(20, FullAttentionSpec(16))
    requests = [generate(0, range(40)), generate(1, range(40))]
    assert [admit_to_groups(attention, each) for each in requests] == [
        admit_to_groups(mla, each) for each in (generate(0, range(40)), generate(1, range(40)))
    ]


def test_a_block_covers_the_tokens_of_all_ranks() -> None:
    specs = [
        KVCacheGroupSpec(["target"], FullAttentionSpec(4)),
        KVCacheGroupSpec(["drafter"], SlidingWindowSpec(4, 8), is_replicated=True),
        KVCacheGroupSpec(["state"], MambaSpec(16)),
    ]
    config = KVCacheConfig(40, specs, decode_context_parallel_size=4)
    assert config.block_sizes == [16, 4, 16]
    assert (config.hash_block_size, config.scheduler_block_size) == (4, 16)
    manager, request = KVCacheManager(config, 1000, enable_kv_cache_events=True), generate(0, range(33))
    compute(manager, request, 32, 33)
    assert [len(table) for table in manager.get_block_ids(0)] == [3, 9, 3]
    assert num_hit_tokens(manager, generate(1, range(33))) == 32
    stored = [event for event in manager.take_events() if isinstance(event, BlockStored)]
    assert {(event.group_idx, event.block_size) for event in stored} == {(0, 16), (1, 4), (2, 16)}


# ---- each kind

KINDS: dict[str, tuple[Spec, ...]] = {
    "chunked": (CHUNKED,),
    "full and chunked": (2, CHUNKED),
    "mamba": (ALIGN,),
    "mamba all": (MambaSpec(4, "all"),),
    "full and mamba": (4, ALIGN),
    "finer full and mamba": (2, ALIGN),
    "all": (4, (4, 6), ChunkedLocalAttentionSpec(4, 8), ALIGN, MambaSpec(4, "all")),
}


@pytest.fixture(params=list(KINDS.values()), ids=list(KINDS))
def specs(request: pytest.FixtureRequest) -> tuple[Spec, ...]:
    found: tuple[Spec, ...] = request.param
    return found


def test_a_committed_step_is_found_and_a_withdrawn_one_is_not(specs: tuple[Spec, ...]) -> None:
    manager = manager_of(60, *specs)
    for step_id, num_found in ((1, 0), (2, 8)):
        request = generate(step_id, range(9))
        manager.begin_step(step_id)
        for end in (4, 8):
            manager.allocate_slots(request, end - request.num_computed_tokens)
            request.num_computed_tokens = end
        manager.launch_step(step_id)
        manager.withdraw(step_id) if step_id == 1 else manager.commit(step_id)
        manager.free(request)
        check_kv(manager)
        found = num_hit_tokens(manager, generate(9, range(9)))
        assert found == max(num_found, 8 if specs == (CHUNKED,) else 0)  # a chunk's beginning needs nothing


def test_a_hit_is_shared_and_freed(specs: tuple[Spec, ...]) -> None:
    manager, first, second = manager_of(60, *specs), generate("first", range(9)), generate("second", range(9))
    compute(manager, first, 8, 9)
    hit, new = admit_to_groups(manager, second)
    assert {len(table) * size for table, size in zip(hit, manager.config.block_sizes, strict=True)} == {8}
    assert all(len(table) == 1 for table in new)
    for request in (first, second):
        manager.free(request)
    assert manager.block_pool.num_held == 0
    assert num_hit_tokens(manager, generate("third", range(9))) == 8


def test_popped_blocks_are_held_until_they_are_freed(specs: tuple[Spec, ...]) -> None:
    manager, request = manager_of(60, *specs), generate(0, range(9))
    compute(manager, request, 8, 9)
    num_held = manager.block_pool.num_held
    popped = manager.pop_blocks_for_free(request)
    assert (len(popped), manager.block_pool.num_held, manager.holders()) == (num_held, num_held, set())
    assert manager.pop_blocks_for_free(request) == []
    manager.block_pool.free_blocks(popped[::-1])
    check_kv(manager)


def test_a_failed_load_is_not_found(specs: tuple[Spec, ...]) -> None:
    """The holder computes it again, or must start over if what that needs was left behind."""
    manager, request = manager_of(60, *specs), generate(0, range(17))
    manager.allocate_slots(request, 1, num_external_computed_tokens=16, delay_cache_blocks=True)
    request.num_computed_tokens = 16
    manager.cache_blocks(request, 16)
    num_found = num_hit_tokens(manager, generate(1, range(17)))
    assert num_found == 16
    loaded = [block_id for table in manager.get_block_ids(0) for block_id in table if block_id]
    assert manager.evict_blocks(loaded) == [0]
    num_found = num_hit_tokens(manager, generate(2, range(17)))
    assert num_found == (16 if specs == (CHUNKED,) else 0)
    manager.free(request)
    check_kv(manager)


def test_events_name_the_kind(specs: tuple[Spec, ...]) -> None:
    manager, request = manager_of(60, *specs, enable_kv_cache_events=True), generate(0, range(9))
    compute(manager, request, 8)
    events = [event for event in manager.take_events() if isinstance(event, BlockStored)]
    assert [event.group_idx for event in events] == list(range(len(specs)))
    names = {
        int: "full_attention",
        tuple: "sliding_window",
        ChunkedLocalAttentionSpec: "chunked_local_attention",
        MambaSpec: "mamba",
    }
    assert [event.kv_cache_spec_kind for event in events] == [names[type(spec)] for spec in specs]


def test_a_blocked_request_counts_what_its_kind_holds(specs: tuple[Spec, ...]) -> None:
    """Peaks in the course of a long prompt are never above what admission reserves."""
    manager, request = manager_of(400, *specs), generate(0, range(160))
    for end in range(4, 161, 4):
        num_lacking = manager.num_lacking_blocks(request, 160, 4)
        num_held = manager.block_pool.num_held
        compute(manager, request, end)
        assert manager.block_pool.num_held <= num_held + num_lacking


def test_the_manager_needs_no_sockets() -> None:
    code = "import sys, mmcached.compat.kv_cache_manager; sys.exit('zmq' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
