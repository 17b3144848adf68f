"""The face of the manager as vLLM 0.9.2 shows it: arguments in its order, small methods, and what is refused.

Which blocks requests get is tested in `tests/engine/kv`, statistics in `test_stats`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from mmcached.cache.hashing.block_hash import hash_block
from mmcached.engine import KVCacheManager, RequestStatus
from mmcached.engine.kv.config import FullAttentionSpec, KVCacheConfig, SlidingWindowSpec
from mmcached.wire.errors import ConfigError
from tests.engine.builders import generate
from tests.engine.kv.builders import (
    COMMON,
    Spec,
    admit,
    admit_to_groups,
    config_of,
    ids,
    manager_of,
    num_hit_tokens,
    with_tail,
)


def test_arguments_come_in_the_order_of_the_seed() -> None:
    config = config_of(11, 16)
    manager = KVCacheManager(config, 100, True, "sha256", True, True, True)
    assert manager.config is config
    admit(manager, generate(0, COMMON))
    assert num_hit_tokens(manager, generate(1, COMMON)) == 16  # use_eagle
    assert manager.make_prefix_cache_stats() is not None  # log_stats
    assert len(manager.take_events()) == 1  # enable_kv_cache_events
    assert manager.caching_hash_fn is not None
    assert manager.coordinator.groups

    request = generate(2, 50)
    manager = KVCacheManager(config, 100)
    hit, num_hit = manager.get_computed_blocks(request)
    # new tokens, found tokens, found blocks, drafts, lookahead, delay
    assert ids(manager.allocate_slots(request, 50, num_hit, hit, 2, 20, True)) == [1, 2, 3, 4, 5]
    assert manager.block_pool.num_published == 0
    assert manager.prefix_cache_stats is manager.make_prefix_cache_stats() is None
    assert manager.take_events() == []


def test_the_plain_case_in_short() -> None:
    config = KVCacheConfig.of_one_group(11, 16)
    assert (config.num_blocks, config.block_sizes) == (11, [16])
    assert admit(KVCacheManager(config, 100), generate(0, 20)) == ([], [1, 2])


def test_builtin_is_taken_for_sha256() -> None:
    with capture_logs() as logs:
        manager = manager_of(11, caching_hash_algo="builtin")
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert manager.caching_hash_fn(bytes(32), [1, 2]) == hash_block(bytes(32), [1, 2])


# ---- what requests have, and leave behind


def test_digests_survive_preemption_and_end_with_the_request() -> None:
    manager = manager_of(11)
    reader, publisher = with_tail(0, 7), with_tail(1, 20, skip_reading_prefix_cache=True)
    manager.get_computed_blocks(reader)
    assert manager.req_to_block_hashes[0] == reader.block_hashes
    manager.get_computed_blocks(publisher)
    manager.allocate_slots(publisher, 68)
    assert manager.req_to_block_hashes[1] == publisher.block_hashes
    assert [len(manager.req_to_block_hashes[request_id]) for request_id in (0, 1)] == [3, 4]
    for request in (reader, publisher):
        manager.free(request)
    assert manager.req_to_block_hashes.keys() == {0, 1}
    for request in (reader, publisher, publisher):
        manager.free_block_hashes(request)
    assert manager.req_to_block_hashes == {}
    assert num_hit_tokens(manager, with_tail(2, 7)) == 48


@pytest.mark.parametrize(("num_tokens", "usage"), [(0, 0.0), (1, 0.1), (80, 0.5), (160, 1.0)])
def test_usage_does_not_count_the_null_block(num_tokens: int, usage: float) -> None:
    manager = manager_of(11)
    if num_tokens:
        admit(manager, generate(0, num_tokens))
    assert manager.usage == usage


# ---- without a prefix cache


@pytest.mark.parametrize("specs", [(), (16,), (16, (16, 32)), ((16, 32), 16, 32)], ids=str)
def test_without_a_prefix_cache_any_groups_will_do(specs: tuple[Spec, ...]) -> None:
    manager = KVCacheManager(config_of(30, *specs), 1000, enable_caching=False)
    request = generate(0, COMMON)
    assert admit_to_groups(manager, request)[0] == tuple([] for _ in specs)
    assert [len(table) for table in manager.get_block_ids(0)] == [-(-48 // size) for size in manager.config.block_sizes]
    assert num_hit_tokens(manager, generate(1, COMMON)) == 0
    manager.cache_blocks(request, 48)
    assert manager.block_pool.num_published == 0
    manager.begin_step(0)
    request.append_output_token(1)
    assert manager.allocate_slots(request, 1) is not None
    manager.commit(0)
    request.status = RequestStatus.RUNNING
    assert len(manager.get_num_common_prefix_blocks(request, 1)) == len(specs)
    manager.free(request)
    assert manager.block_pool.num_free == 29
    assert manager.reset_prefix_cache() is True


# ---- configurations that cannot be


WRONG: list[tuple[Callable[[], object], str, object, str]] = [
    (lambda: config_of(0, 16), "num_blocks", 0, "at least 1"),
    (lambda: config_of(-3, 16), "num_blocks", -3, "at least 1"),
    (lambda: KVCacheConfig.of_one_group(11, 0), "block_size", 0, "at least 1"),
    (lambda: FullAttentionSpec(-1), "block_size", -1, "at least 1"),
    (lambda: SlidingWindowSpec(0, sliding_window=8), "block_size", 0, "at least 1"),
    (lambda: SlidingWindowSpec(8, sliding_window=0), "sliding_window", 0, "at least 1"),
    (lambda: manager_of(11, max_model_len=0), "max_model_len", 0, "at least 1"),
    (lambda: manager_of(11, num_hash_lookahead_tokens=-1), "num_hash_lookahead_tokens", -1, "at least 0"),
    (lambda: manager_of(11, caching_hash_algo="md5"), "prefix_caching_hash_algo", "md5", "sha256"),
]


@pytest.mark.parametrize(("make", "field", "value", "limit"), WRONG, ids=[f"{row[1]}={row[2]}" for row in WRONG])
def test_impossible_configurations_are_refused(
    make: Callable[[], object], field: str, value: object, limit: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert (caught.value.details["field"], caught.value.details["value"]) == (field, value)
    assert limit in str(caught.value.details["limit"])
