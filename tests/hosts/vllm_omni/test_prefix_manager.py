"""The contract of vllm-omni's prefix cache manager, run by its own class and by ours; and ours in its runners."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm_omni.core.prefix_cache import ModelCachePolicy, OmniPrefixCacheUnmatchError, PrefixCacheConfig, runner_mixin
from vllm_omni.core.prefix_cache import OmniPrefixCacheManager as Upstream

from mmcached.compat import omni_prefix_cache_manager
from mmcached.compat.omni_prefix_cache_manager import OmniPrefixCacheManager

SIZE, WIDTH = 4, 3


class View:
    """What a manager sees of a batch: requests, and the slots of their rows."""

    def __init__(self) -> None:
        self.requests: dict[str, tuple[list[int], int]] = {}

    def batch_req_ids(self) -> list[str]:
        return list(self.requests)

    def step_slots_cpu(self, req_ids: list[str], num_scheduled: dict[str, int]) -> torch.Tensor:
        slots: list[int] = []
        for req_id in req_ids:
            blocks, start = self.requests[req_id]
            places = range(start, start + num_scheduled[req_id])
            slots += [blocks[place // SIZE] * SIZE + place % SIZE for place in places]
        return torch.tensor(slots, dtype=torch.long)


class Steps:
    """Plays steps: by request its blocks, its first position and its number of rows; its rows are told by `hidden`."""

    def __init__(self, kind: Any, policy: ModelCachePolicy | None = None) -> None:
        self.view = View()
        self.manager = kind(PrefixCacheConfig(num_blocks=16, block_size=SIZE), self.view, eager=True)
        if policy is not None:
            self.manager.register_policy(policy)

    def save(self, requests: Any, *, hits: Any = None, finished: Any = (), mm: Any = None, padding: int = 0) -> int:
        new = [
            SimpleNamespace(req_id=req_id, num_computed_tokens=(hits or {}).get(req_id, 0), block_ids=[blocks])
            for req_id, (blocks, _, _) in requests.items()
        ]
        scheduled = {req_id: count for req_id, (_, _, count) in requests.items()}
        self.manager.new_step_starts(
            SimpleNamespace(scheduled_new_reqs=new, finished_req_ids=set(finished), num_scheduled_tokens=scheduled)
        )
        self.view.requests = {req_id: (blocks, start) for req_id, (blocks, start, _) in requests.items()}
        parts = [hidden(blocks, start, start + count) for blocks, start, count in requests.values()]
        rows, outputs = torch.cat(parts), mm or {}
        padded = torch.cat([rows, torch.full((padding, WIDTH), -1.0)])
        found: int = self.manager.save_outputs(
            padded, outputs, num_tokens_unpadded=len(rows), num_tokens_padded=len(padded)
        )
        return found

    def run(self, requests: Any, **named: Any) -> Any:
        return self.manager.materialize(self.save(requests, **named), list(requests))


def hidden(blocks: list[int], start: int, end: int) -> torch.Tensor:
    """Return rows that tell their slots."""
    slots = [float(blocks[place // SIZE] * SIZE + place % SIZE) for place in range(start, end)]
    return torch.tensor(slots)[:, None].expand(-1, WIDTH).clone()


@pytest.fixture(params=[Upstream, OmniPrefixCacheManager], ids=["vllm-omni", "mmcached"])
def make(request: pytest.FixtureRequest) -> Callable[..., Steps]:
    return lambda policy=None: Steps(request.param, policy)


def test_a_request_gets_its_rows(make: Any) -> None:
    found = make().run({"a": ([0, 1], 0, 8), "b": ([5], 0, 2)}, padding=6)
    assert torch.equal(found.hidden_states["a"], hidden([0, 1], 0, 8))
    assert torch.equal(found.hidden_states["b"], hidden([5], 0, 2))


@pytest.mark.parametrize("finished", [(), ("a",)])
def test_a_hit_gets_its_prefix(make: Any, finished: Any) -> None:
    steps = make()
    steps.run({"a": ([0, 1, 2], 0, 12)})
    found = steps.run({"b": ([0, 1, 3], 8, 4)}, hits={"b": 8}, finished=finished)
    assert torch.equal(found.hidden_states["b"], hidden([0, 1, 3], 0, 12))
    again = steps.run({"b": ([0, 1, 3, 4], 12, 1)})
    assert torch.equal(again.hidden_states["b"], hidden([0, 1, 3, 4], 12, 13)), "later steps get new rows alone"


def test_a_hit_on_rows_of_the_same_step(make: Any) -> None:
    found = make().run({"a": ([0, 1], 0, 8), "b": ([0, 1, 2], 8, 4)}, hits={"b": 8})
    assert torch.equal(found.hidden_states["b"], hidden([0, 1, 2], 0, 12))


def test_chunks_and_a_partial_block(make: Any) -> None:
    steps = make()
    for start, count in ((0, 3), (3, 4), (7, 1)):
        found = steps.run({"a": ([6, 2], start, count)})
        assert torch.equal(found.hidden_states["a"], hidden([6, 2], start, start + count))
    found = steps.run({"b": ([6, 2, 9], 8, 2)}, hits={"b": 8}, finished=["a"])
    assert torch.equal(found.hidden_states["b"], hidden([6, 2, 9], 0, 10))


def test_missing_rows_are_an_error(make: Any) -> None:
    steps = make()
    step_id = steps.save({"c": ([5, 6, 7], 8, 4)}, hits={"c": 8})
    with pytest.raises(OmniPrefixCacheUnmatchError, match="not readable"):
        steps.manager.materialize(step_id, ["c"])


def test_a_hit_inside_a_block_is_an_error(make: Any) -> None:
    steps = make()
    steps.run({"a": ([0, 1], 0, 8)})
    with pytest.raises(OmniPrefixCacheUnmatchError, match="not block aligned"):
        steps.save({"b": ([0, 1], 6, 2)}, hits={"b": 6})


def test_a_request_that_goes_on_is_no_hit(make: Any) -> None:
    steps = make()
    steps.run({"a": ([0, 1], 0, 8)})
    found = steps.run({"a": ([0, 1, 2], 8, 4)}, hits={"a": 8})
    assert torch.equal(found.hidden_states["a"], hidden([0, 1, 2], 8, 12))
    steps.run({"b": ([3], 0, 2)}, finished=["a"])
    found = steps.run({"a": ([0, 1, 4], 8, 4)}, hits={"a": 8}, finished=["b"])
    assert torch.equal(found.hidden_states["a"], hidden([0, 1, 4], 0, 12))


@pytest.mark.parametrize("padding", [0, 8])
def test_other_outputs_are_merged(make: Any, padding: int) -> None:
    steps = make()
    first = torch.arange(16.0).view(8, 2)
    steps.run({"a": ([0, 1], 0, 8)}, mm={"talker": first}, padding=padding)
    found = steps.run(
        {"b": ([0, 1, 2], 8, 4)}, hits={"b": 8}, finished=["a"], mm={"talker": torch.full((4, 2), 7.0)}, padding=padding
    )
    assert torch.equal(found.mm_outputs["talker"]["b"], torch.cat([first, torch.full((4, 2), 7.0)]))


def test_a_slot_has_the_rows_of_its_last_tenant(make: Any) -> None:
    steps = make()
    for name, value in (("a", 1.0), ("b", 2.0)):
        steps.run({name: ([2], 0, 4)}, mm={"k": torch.full((4, 2), value)})
    found = steps.run({"c": ([2, 3], 4, 2)}, hits={"c": 4}, finished=["a", "b"], mm={"k": torch.full((2, 2), 3.0)})
    assert found.mm_outputs["k"]["c"][:, 0].tolist() == [2.0] * 4 + [3.0] * 2


@pytest.mark.parametrize("finished", [(), ("a",)])
def test_deferred_rows_are_found(make: Any, finished: Any) -> None:
    policy = ModelCachePolicy(deferred_keys=frozenset({"k"}))
    steps = make(policy)
    for start in range(SIZE):
        found = steps.run({"a": ([3], start, 1)}, mm={"k": torch.full((1, 2), float(start))})
        assert found.mm_outputs["k"]["a"].tolist() == [[float(start)] * 2]
    steps.run({"z": ([9], 0, 1)}, finished=finished, mm={"k": torch.full((1, 2), 9.0)})
    found = steps.run({"b": ([3, 4], 4, 2)}, hits={"b": 4}, mm={"k": torch.full((2, 2), 8.0)})
    assert found.mm_outputs["k"]["b"][:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 8.0, 8.0]


def test_a_model_without_hidden_states(make: Any) -> None:
    steps = make(ModelCachePolicy(needs_full_hidden_states=False))
    found = steps.run({"a": ([0], 0, 4)}, mm={"k": torch.ones(4, 2)})
    assert found.hidden_states is None
    assert torch.equal(found.mm_outputs["k"]["a"], torch.ones(4, 2))


def test_outputs_that_are_no_rows(make: Any) -> None:
    references = [torch.arange(8), torch.arange(12)]
    found = make().run({"a": ([0], 0, 2), "b": ([1], 0, 2)}, mm={"ref": references, "whole": torch.ones(15, 2)})
    for req_id in ("a", "b"):
        assert all(map(torch.equal, found.mm_outputs["ref"][req_id], references))
        assert torch.equal(found.mm_outputs["whole"][req_id], torch.ones(15, 2))


def test_results_do_not_depend_on_later_steps(make: Any) -> None:
    """Another thread takes a step's results after the slots have other rows."""
    steps = make()
    steps.run({"a": ([0, 1], 0, 8)})
    step_id = steps.save({"b": ([0, 1, 2], 8, 4)}, hits={"b": 8}, finished=["a"])
    later = steps.save({"c": ([0, 1], 0, 8)}, finished=["b"], mm={"k": torch.ones(8, 2)})
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(steps.manager.materialize(step_id, ["b"])))
    thread.start()
    thread.join(60)
    assert torch.equal(found[0].hidden_states["b"], hidden([0, 1, 2], 0, 12))
    steps.manager.discard_step(later)


def test_a_step_is_taken_once(make: Any) -> None:
    steps = make()
    first = steps.save({"a": ([0], 0, 2)})
    with pytest.raises(OmniPrefixCacheUnmatchError, match="outside the save snapshot"):
        steps.manager.materialize(first, ["b"])
    second = steps.save({"a": ([0], 2, 2)})
    steps.manager.discard_step(second)
    for take in (steps.manager.discard_step, lambda step_id: steps.manager.materialize(step_id, ["a"])):
        with pytest.raises(OmniPrefixCacheUnmatchError):
            take(second)
    steps.manager.shutdown()


def test_rows_of_another_key_that_are_missing_are_left_out() -> None:
    """vllm-omni fills them with zeros."""
    steps = Steps(OmniPrefixCacheManager)
    steps.run({"a": ([0], 0, 4)})
    found = steps.run({"b": ([0, 1], 4, 2), "c": ([3], 0, 2)}, hits={"b": 4}, mm={"k": torch.ones(4, 2)})
    assert found.mm_outputs["k"]["b"] == [], "runners leave an empty list out of a payload"
    assert torch.equal(found.mm_outputs["k"]["c"], torch.ones(2, 2))
    assert torch.equal(found.hidden_states["b"], hidden([0, 1], 0, 6))


def test_its_runners_create_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_mixin, "OmniPrefixCacheManager", Upstream)
    monkeypatch.setattr("vllm.distributed.parallel_state.get_pp_group", lambda: SimpleNamespace(is_last_rank=True))
    omni_prefix_cache_manager.register()
    assert runner_mixin.OmniPrefixCacheManager is Upstream, "nobody has asked"
    monkeypatch.setenv("MMCACHED_PREFIX_ROWS", "1")
    omni_prefix_cache_manager.register()

    spec = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32)
    table = SimpleNamespace(block_table=SimpleNamespace(cpu=torch.tensor([[2, 5, 7]])))
    tables = type("Tables", (), {"block_tables": [table], "__getitem__": lambda self, index: table})()
    runner: Any = runner_mixin.PrefixCacheRunnerMixin()
    runner.input_batch = SimpleNamespace(
        req_ids=["a"], req_id_to_index={"a": 0}, num_computed_tokens_cpu=torch.tensor([0]), block_table=tables
    )
    runner.kv_cache_config = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
    runner.is_pooling_model = False
    runner._omni_prefix_cache_cfg = PrefixCacheConfig(num_blocks=16, block_size=SIZE)
    new = SimpleNamespace(req_id="a", num_computed_tokens=0, block_ids=[[2, 5, 7]])
    runner._prefix_cache_step_begin(
        SimpleNamespace(scheduled_new_reqs=[new], finished_req_ids=set(), num_scheduled_tokens={"a": 6})
    )
    assert type(runner.omni_prefix_cache) is OmniPrefixCacheManager
    rows = hidden([2, 5, 7], 0, 6)
    nested = {"codes": {"audio": torch.ones(6, 2)}}
    step_id = runner._prefix_cache_save_step(rows, nested, num_tokens_unpadded=6, num_tokens_padded=6)
    found, outputs = runner._prefix_cache_materialize(step_id, ["a"])
    assert torch.equal(found["a"], rows)
    assert torch.equal(outputs["codes.audio"]["a"], torch.ones(6, 2))
