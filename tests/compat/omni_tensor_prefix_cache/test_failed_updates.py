"""An update that ends in an error, whichever: no key keeps there what the slots' former tenants had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmcached.compat.omni_tensor_prefix_cache import MissingPrefix
from mmcached.wire.errors import ConfigError, InvalidRequest
from mmcached.worker import OmniTensorPrefixCache
from mmcached.worker.hidden_states.pending_rows import PendingRows
from mmcached.worker.hidden_states.row_arena import RowArena
from tests.compat.omni_tensor_prefix_cache.cases import HIDDEN, SLOTS, TABLE, batch, hit, with_keys

KEYS = {"before": 1, "fails": 1, "after": 1}


class DeviceError(RuntimeError):
    """What a device throws."""


def filled() -> OmniTensorPrefixCache:
    """Return a cache in which every key has the first tenant's rows in all of `SLOTS`, at the end of its step."""
    cache = with_keys(KEYS, torch.float32)
    cache.update_omni_tensor_prefix_cache(ones((8, HIDDEN)), {key: ones((8, 1)) for key in KEYS}, 8, SLOTS)
    cache.reset_prefix_cached_new_req_ids()
    return cache


def ones(shape: tuple[int, int], value: float = 1.0, device: str = "cpu") -> torch.Tensor:
    return torch.full(shape, value, device=device)


def update(cache: OmniTensorPrefixCache, num_rows: int = 4, hidden: Any = None, **others: Any) -> None:
    """Write the second tenant's rows to the first slots."""
    outputs = {key: ones((num_rows, 1), 2.0) for key in KEYS} | others
    cache.update_omni_tensor_prefix_cache(hidden, outputs, num_rows, SLOTS[:num_rows])


def found(cache: OmniTensorPrefixCache) -> tuple[dict[str, list[float]], dict[str, tuple[int, int]]]:
    """Return what a hit on all of `SLOTS` gets of each key, and what it lacks."""
    hit(cache)
    now, scheduled = batch([8], [TABLE[0]]), {"req1": 1}
    hidden, outputs = ones((1, HIDDEN), 3.0), {key: ones((1, 1), 3.0) for key in KEYS}
    reads: list[Callable[[], dict[str, Any]]] = [
        lambda: {"hidden_states": cache.get_merged_hidden_states([0], now, hidden, scheduled)},
        lambda: cache.get_merged_multimodal_states([0], now, outputs, scheduled),
    ]
    merged: dict[str, Any] = {}
    lacking: dict[str, tuple[int, int]] = {}
    for read in reads:
        try:
            merged |= read()
        except MissingPrefix as error:
            merged |= error.merged
            lacking |= {run.key: (run.first, run.end) for run in error.missing}
    rows = {key: parts["req1"][:-1, 0].tolist() for key, parts in merged.items() if "req1" in parts}
    return rows, lacking


@pytest.mark.parametrize(
    "error", [DeviceError("out of memory"), MemoryError(), NotImplementedError(), OSError(), KeyboardInterrupt()]
)
@pytest.mark.parametrize("fails", ["hidden_states", *KEYS])
def test_nothing_of_the_former_tenant_is_left_whatever_is_raised_wherever(
    error: BaseException, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = filled()
    put = PendingRows.put

    def broken(pending: PendingRows, arena: RowArena, *rows: Any) -> None:
        if arena.spec.name == fails:
            raise error
        put(pending, arena, *rows)

    monkeypatch.setattr(PendingRows, "put", broken)
    with pytest.raises(type(error)):
        update(cache, hidden=ones((4, HIDDEN), 2.0))
    monkeypatch.undo()
    rows, lacking = found(cache)
    assert all(values == [2.0] * 4 + [1.0] * 4 for values in rows.values())
    assert set(rows) | set(lacking) == {"hidden_states", *KEYS}
    assert set(lacking.values()) == {(0, 4)}
    assert fails in lacking
    cache.check_integrity()


def test_a_device_that_cannot_be_read_leaves_nothing_of_the_former_tenant() -> None:
    cache = filled()
    with pytest.raises(NotImplementedError):
        update(cache, fails=ones((4, 1), device="meta"))
    assert set(found(cache)[1]) >= {"hidden_states", "fails", "after"}


def test_hidden_states_that_cannot_be_read_leave_nothing_of_the_former_tenant() -> None:
    cache = filled()
    with pytest.raises(NotImplementedError):
        update(cache, hidden=ones((4, HIDDEN), device="meta"))
    assert set(found(cache)[1].values()) == {(0, 4)}


@pytest.mark.parametrize("discover", ["first", "two_lengths"])
def test_a_new_key_for_whose_rows_there_is_no_memory_costs_no_other_key(discover: Any) -> None:
    cache = OmniTensorPrefixCache(10, 4, HIDDEN, torch.float32, discover=discover)
    for key in KEYS:
        cache.declare(key, 1, torch.float32)
    cache.update_omni_tensor_prefix_cache(None, {key: ones((8, 1)) for key in KEYS}, 8, SLOTS)
    cache.reset_prefix_cached_new_req_ids()
    huge = torch.ones(1).expand(4, 1 << 42)  # of no size itself
    with pytest.raises(ConfigError, match="a new key") as caught:
        cache.update_omni_tensor_prefix_cache(
            None, {"a new key": huge} | {key: ones((4, 1), 2.0) for key in KEYS}, 4, SLOTS[:4]
        )
    assert caught.value.details["value"] == (1 << 44) * 40
    rows, _ = found(cache)
    assert rows == dict.fromkeys(KEYS, [2.0] * 4 + [1.0] * 4)


def test_a_cache_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_states"):
        OmniTensorPrefixCache(1 << 16, 16, 1 << 30, torch.float32)


def test_a_second_call_in_the_step_that_fails_takes_what_it_was_to_replace() -> None:
    cache = filled()
    update(cache, 4)
    with pytest.raises(InvalidRequest):
        update(cache, 4, fails=ones((4, 2)))
    rows, lacking = found(cache)
    assert lacking == {"hidden_states": (0, 4), "fails": (0, 4)}
    assert rows == dict.fromkeys(["before", "after"], [2.0] * 4 + [1.0] * 4)
