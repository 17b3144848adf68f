"""A call is taken apart into images, and put together again in the form of each family."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmcached.client.device.devices import device_of
from mmcached.integrations.transformers.splitting import join, parts_of, split
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.families import FAMILIES, find_family
from tests.present import present

CPU = device_of("cpu", max_pinned_bytes=0)
QWEN = FAMILIES["Qwen3VLModel"]
GRID = torch.tensor([[1, 2, 2], [1, 4, 2]])


def test_images_of_a_batch_are_its_rows() -> None:
    pixels = torch.randn(3, 2, 4, 4)
    found = present(split(FAMILIES["LlavaModel"], pixels, {"vision_feature_layer": -2}))
    assert torch.equal(torch.cat([each.pixels for each in found]), pixels)
    assert [each.arguments for each in found] == 3 * [{"vision_feature_layer": -2}]


def test_images_with_a_grid_are_its_patches() -> None:
    pixels = torch.randn(12, 5)
    found = present(split(QWEN, pixels, {"image_grid_thw": GRID}))
    assert [len(each.pixels) for each in found] == [4, 8]
    assert [each.arguments["image_grid_thw"].tolist() for each in found] == [[[1, 2, 2]], [[1, 4, 2]]]


def test_pixels_that_do_not_fit_are_left_to_the_model() -> None:
    for grid in (None, GRID[0], GRID[:1], "grid"):
        assert split(QWEN, torch.randn(12, 5), {"image_grid_thw": grid}) is None


def test_tiles_in_one_strip_are_cut_by_their_sizes() -> None:
    minicpm, sizes = FAMILIES["MiniCPMV4_6Model"], torch.tensor([[2, 2], [2, 4]])
    pixels = torch.randn(1, 3, 5, 12 * 5)
    found = present(split(minicpm, pixels, {"target_sizes": sizes, "downsample_mode": "16x"}))
    assert [each.pixels.shape[-1] for each in found] == [20, 40]
    assert torch.equal(torch.cat([each.pixels for each in found], -1), pixels)
    assert [each.arguments["target_sizes"].tolist() for each in found] == [[[2, 2]], [[2, 4]]]
    for wrong in (pixels[..., 1:], pixels.expand(2, -1, -1, -1)):
        assert split(minicpm, wrong, {"target_sizes": sizes}) is None


def alone(seed: int) -> Any:
    """Return what a model with levels gives for one image."""
    tensors = torch.randn(3, 1, 4, 8, generator=torch.Generator().manual_seed(seed))
    return SimpleNamespace(pooler_output=tensors[0], deepstack_features=list(tensors[1:]))


def test_parts_are_put_together_in_the_form_of_the_family() -> None:
    found = [parts_of(QWEN, alone(seed)) for seed in (1, 2)]
    joined = join(QWEN, found, CPU.load)
    assert torch.equal(joined["pooler_output"][1], alone(2).pooler_output[0])
    assert [len(level) for level in joined["deepstack_features"]] == [2, 2]
    assert torch.equal(joined["deepstack_features"][1][0], alone(1).deepstack_features[1][0])
    stacked = FAMILIES["SiglipModel"]
    found = [parts_of(stacked, alone(seed)) for seed in (1, 2)]
    assert torch.equal(join(stacked, found, CPU.load)["pooler_output"][1], alone(2).pooler_output[0])


def leaves(part: Any) -> list[torch.Tensor]:
    return [part] if isinstance(part, torch.Tensor) else [tensor for each in part for tensor in leaves(each)]


def test_what_is_found_goes_to_the_device_of_the_model() -> None:
    device = torch.device("meta")  # stands in for one that has its own memory
    load = device_of("meta", max_pinned_bytes=0).load
    for family in FAMILIES.values():
        outputs = SimpleNamespace(**vars(alone(1)), last_hidden_state=torch.zeros(1, 4, 8))
        joined = join(family, [parts_of(family, outputs)], load)
        assert {tensor.device for part in joined.values() for tensor in leaves(part)} == {device}


def test_a_part_that_a_tower_does_not_give_is_none() -> None:
    tower = FAMILIES["SiglipVisionModel"]
    output = SimpleNamespace(last_hidden_state=torch.zeros(1, 2), pooler_output=None)
    assert join(tower, [parts_of(tower, output)], CPU.load)["pooler_output"] is None


def test_a_model_of_no_known_family_is_refused() -> None:
    class LlavaModel(torch.nn.Module):
        """Has the name of a known one, and is somebody else's."""

    for model in (torch.nn.Linear(1, 1), LlavaModel()):
        with pytest.raises(InvalidRequest, match=r"model = .*one of LlavaModel"):
            find_family(model)
