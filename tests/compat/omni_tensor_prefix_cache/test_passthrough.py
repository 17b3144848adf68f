"""What each request gets of an output that is no cached key."""

from __future__ import annotations

from typing import Any

import torch

from mmcached.compat.omni_tensor_prefix_cache import InputBatch
from mmcached.compat.omni_tensor_prefix_cache.engine_batch import Step
from mmcached.compat.omni_tensor_prefix_cache.passthrough import split_per_request

BATCH = InputBatch(["a", "b"], {"a": 0, "b": 1}, [0, 0], torch.zeros((2, 1), dtype=torch.int64))
SCHEDULED = {"a": 3, "b": 2}


def split(value: object) -> dict[str, Any]:
    return split_per_request("value", value, Step([0, 3], BATCH, SCHEDULED))


def test_a_tensor_with_the_steps_length_is_cut() -> None:
    for tensor in (torch.arange(5), torch.arange(15).view(5, 3), torch.arange(20).view(5, 2, 2)):
        parts = split(tensor)
        assert torch.equal(parts["a"], tensor[:3])
        assert torch.equal(parts["b"], tensor[3:])


def test_any_other_tensor_is_copied_whole_to_each() -> None:
    for tensor in (torch.ones((3, 4)), torch.ones((1, 4)), torch.ones(7), torch.tensor(5.0)):
        before = tensor.clone()
        parts = split(tensor)
        parts["a"].add_(1)
        assert torch.equal(parts["b"], before)
        assert torch.equal(tensor, before)


def test_a_list_goes_whole_to_each_with_its_tensors_copied() -> None:
    value: list[Any] = [torch.tensor([11, 12]), [torch.tensor([21])], {"x": torch.tensor(1)}, "word"]
    parts = split(value)
    parts["a"][0].add_(100)
    parts["a"][1][0].add_(100)
    assert parts["b"][0].tolist() == [11, 12]
    assert parts["b"][1][0].tolist() == [21]
    assert value[0].tolist() == [11, 12]
    assert parts["b"][2]["x"].item() == 1
    assert split([]) == {"a": [], "b": []}


def test_a_dict_is_split_by_the_same_rules() -> None:
    parts = split({"rows": torch.arange(5), "nothing": None, "empty": {}, "inner": {"word": "w"}})
    assert parts["b"]["rows"].tolist() == [3, 4]
    assert set(parts["a"]) == {"rows", "inner"}
    assert parts["a"]["inner"] == {"word": "w"}


def test_nothing_is_left_out_within_a_list() -> None:
    assert split([{"nothing": None, "empty": {}}])["a"] == [{"nothing": None, "empty": {}}]


def test_none_and_empty_dicts_are_left_out() -> None:
    assert split(None) == {}
    assert split({}) == {}
    assert split({"a": None}) == {}


def test_anything_else_is_the_object_itself() -> None:
    assert split("word") == {"a": "word", "b": "word"}
    assert split(7) == {"a": 7, "b": 7}
