"""An engine's own batch object serves as it is: vLLM's block tables by KV group, arrays, tensors or lists."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.wire.errors import InvalidRequest
from tests.compat.omni_tensor_prefix_cache.cases import (
    HIDDEN,
    HIT_AND_MISS,
    SCHEDULED,
    SLOTS,
    STARTS,
    TABLE,
    batch,
    hit,
    make_cache,
)


class Groups:
    """Block tables by KV group, as vLLM's input batch has them."""

    def __init__(self, *tables: list[list[int]]) -> None:
        self.block_tables = [
            SimpleNamespace(block_table=SimpleNamespace(cpu=torch.tensor(table, dtype=torch.int32))) for table in tables
        ]

    def __getitem__(self, group: int) -> Any:
        return self.block_tables[group]


def engine_batch(*tables: list[list[int]], computed: Any = None) -> Any:
    return SimpleNamespace(
        req_ids=["req1", "req2"],
        req_id_to_index={"req1": 0, "req2": 1},
        num_computed_tokens_cpu=np.array([8, 0, 99, 99], dtype=np.int32) if computed is None else computed,
        block_table=Groups(*(tables or (TABLE,))),
    )


@pytest.mark.parametrize("computed", [[8, 0], np.array([8, 0]), torch.tensor([8, 0])], ids=["list", "array", "tensor"])
@pytest.mark.parametrize(
    "starts", [STARTS, torch.tensor([0, 3, 5], dtype=torch.int32), np.array([0, 3])], ids=["list", "tensor", "array"]
)
def test_a_hit_of_an_engines_own_batch(computed: Any, starts: Any) -> None:
    cache = make_cache()
    prefix, new = torch.rand((8, HIDDEN)), torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix, None, 8, SLOTS)
    hit(cache)
    merged = cache.get_merged_hidden_states(starts, engine_batch(computed=computed), new, SCHEDULED)
    assert torch.equal(merged["req1"], torch.cat([prefix, new[:3]]))
    assert torch.equal(merged["req2"], new[3:])


def test_deferred_rows_of_an_engines_own_batch() -> None:
    cache = make_cache()
    rows = torch.arange(10).view(5, 2)
    now = engine_batch(computed=[4, 0])
    cache.stage_deferred_mm_outputs(torch.tensor([0, 3, 5]), now, {"codes": rows}, SCHEDULED, {"codes"})
    cache.commit_deferred_mm_outputs({"req1", "req2"}, now)
    flat = cache.mm_outputs_cache["codes"].view(-1, 2)
    assert torch.equal(flat[[12, 13, 14, 24, 25]], rows)


def test_of_several_kv_groups_the_first_is_used_and_said_so_once(caplog: pytest.LogCaptureFixture) -> None:
    cache = make_cache()
    prefix, new = torch.rand((8, HIDDEN)), torch.rand((5, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix, None, 8, SLOTS)
    hit(cache)
    for _ in range(2):
        merged = cache.get_merged_hidden_states(STARTS, engine_batch(TABLE, [[0], [1]]), new, SCHEDULED)
    assert torch.equal(merged["req1"], torch.cat([prefix, new[:3]]))
    assert [(entry.levelname, entry.args) for entry in caplog.records] == [("WARNING", (2,))]


def test_requests_may_lie_in_any_order_in_table_and_step() -> None:
    cache = make_cache()
    prefix, new = torch.rand((6, HIDDEN)), torch.rand((9, HIDDEN))
    cache.update_omni_tensor_prefix_cache(prefix, None, 6, torch.tensor([24, 25, 26, 27, 28, 29]))
    hit(cache, "c")
    mixed = batch([0, 6, 0], TABLE[:1] + TABLE[1:] + TABLE[:1], ["a", "c", "b"])
    mixed.req_ids = ["b", "a", "c"]
    merged = cache.get_merged_hidden_states([5, 0, 2], mixed, new, {"a": 4, "b": 3, "c": 2})
    assert list(merged) == ["b", "a", "c"]
    assert torch.equal(merged["a"], new[5:9])
    assert torch.equal(merged["b"], new[2:5])
    assert torch.equal(merged["c"], torch.cat([prefix, new[:2]]))


@pytest.mark.parametrize(
    ("starts", "scheduled"),
    [([0], SCHEDULED), (STARTS, {"req1": 3}), ([0, -1], SCHEDULED), (STARTS, {"req1": 3, "req2": -2})],
    ids=["no start", "not scheduled", "negative start", "negative count"],
)
def test_a_step_that_contradicts_its_batch_is_refused(starts: list[int], scheduled: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        make_cache().get_merged_hidden_states(starts, HIT_AND_MISS, torch.ones((5, HIDDEN)), scheduled)


@pytest.mark.parametrize("table", [torch.zeros((2, 4)), torch.zeros(4, dtype=torch.int64)], ids=["floats", "1-D"])
def test_a_block_table_of_another_kind_is_refused(table: torch.Tensor) -> None:
    cache = make_cache()
    hit(cache)
    wrong = batch([8, 0], TABLE)
    wrong.block_table = table
    with pytest.raises(InvalidRequest, match="block_table"):
        cache.get_merged_hidden_states(STARTS, wrong, torch.ones((5, HIDDEN)), SCHEDULED)
