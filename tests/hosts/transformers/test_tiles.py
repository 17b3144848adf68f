"""Tiles that a tower encodes apart are found apart: a screenshot of which one tile has changed encodes one tile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import LlavaOnevisionImageProcessorPil
from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

from mmcached.client import Client
from mmcached.integrations.transformers import cached_image_features
from tests.client.services import StoreService
from tests.hosts.transformers import models
from tests.hosts.transformers.models import Inputs
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors
from tests.hosts.transformers.test_sharing import Child
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually, small_config

TILED = [maker.__name__ for maker in models.TILED]
PIXELS = {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}
SCREENS: dict[str, tuple[Callable[[], Any], int]] = {
    "internvl": (
        lambda: GotOcr2ImageProcessorPil(size={"height": 56, "width": 56}, crop_to_patches=True, max_patches=4),
        5,
    ),
    "llava_next": (lambda: LlavaNextImageProcessorPil(**PIXELS, image_grid_pinpoints=models.PINPOINTS), 5),
    "llava_onevision": (
        lambda: LlavaOnevisionImageProcessorPil(
            size={"height": 56, "width": 56}, image_grid_pinpoints=models.PINPOINTS
        ),
        5,
    ),
    "minicpmv": (lambda: MiniCPMV4_6ImageProcessorPil(max_slice_nums=4, scale_resolution=112), 5),
    "minicpmv4_7": (lambda: MiniCPMV4_6ImageProcessorPil(max_slice_nums=4, scale_resolution=112), 5),
}
"""Of each family a processor that cuts a square screen into four tiles, and the number with the overview."""


def screen(side: int = 224, *, changed: bool = False, quarter: int = 3) -> Image.Image:
    """Return a screen; if changed, with another patch in the middle of its first or last quarter, 0 or 3."""
    pixels = np.random.default_rng(0).integers(0, 255, (side, side, 3), np.uint8)
    if changed:
        first = 11 if quarter else 3
        middle = slice(side * first // 16, side * (first + 2) // 16)
        pixels[middle, middle] = 255 - pixels[middle, middle]
    return Image.fromarray(pixels)


def processed(family: str, *screens: Image.Image) -> Inputs:
    make, _ = SCREENS[family]
    found = make()(list(screens), return_tensors="pt")
    return {name: found[name] for name in ("pixel_values", "image_sizes", "target_sizes") if name in found}


def with_other_tile(inputs: Inputs, number: int) -> Inputs:
    """Return the inputs of one screen with other pixels in the tile with this number."""
    pixels = inputs["pixel_values"].clone()
    if "target_sizes" in inputs:
        widths = [int(each) * pixels.shape[-2] for each in inputs["target_sizes"].prod(-1)]
        torch.split(pixels, widths, -1)[number].neg_()
    else:
        pixels.flatten(0, -4)[number].neg_()
    return inputs | {"pixel_values": pixels}


def count_tower_rows(run: Callable[[], Any], patch_size: int = 14) -> int:
    """Return how many tiles the first layers of towers have taken, as torch's profiler sees it."""
    with torch.autograd.profiler.profile(record_shapes=True) as profile:
        run()
    shapes = [event.input_shapes[0] for event in profile.function_events if event.name == "aten::conv2d"]
    assert all(height in (56, patch_size) for _, _, height, _ in shapes)
    return sum(shape[0] for shape in shapes)


def check(model: Any, inputs: Inputs, wanted: list[torch.Tensor]) -> None:
    assert_equal(tensors(ask(model, inputs)), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", TILED)
@torch.no_grad()
def test_packed_features_have_the_bits_of_each_tile_alone(client: Client, family: str, dtype: torch.dtype) -> None:
    model, inputs = models.make(family, dtype)
    wanted = one_by_one(model, inputs)
    assert [len(each) for each in wanted] == [88, 56]
    for num_encoded, view in ((8, False), (0, False), (0, True)):
        with cached_image_features(model, client, view=view) as features:
            assert_equal(tensors(ask(model, inputs)), wanted)
        assert (features.num_images, features.num_encoded, features.num_bypassed) == (8, num_encoded, 0)


@pytest.mark.parametrize("family", TILED)
def test_generation_goes_as_without(client: Client, family: str) -> None:
    model, inputs = models.make(family)
    asked = {"max_new_tokens": 4, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    wanted = model.generate(**inputs, **asked)
    for num_encoded in (8, 0):
        with cached_image_features(model, client) as features:
            generated = model.generate(**inputs, **asked)
        assert torch.equal(generated.sequences, wanted.sequences)
        assert all(
            torch.allclose(one, two, atol=1e-4) for one, two in zip(generated.logits, wanted.logits, strict=True)
        )
        assert (features.num_images, features.num_encoded, features.num_bypassed) == (8, num_encoded, 0)


@pytest.mark.parametrize("family", SCREENS)
@torch.no_grad()
def test_without_the_store_a_tile_changes_no_bit_of_another(family: str) -> None:
    """The reason why tiles may be shared: towers of these families attend within a tile."""
    model, _ = models.make(family)
    inputs = processed(family, screen())
    before, after = (ask(model, each)["pooler_output"] for each in (inputs, with_other_tile(inputs, 0)))
    if family in TILED:  # the overview is first, and its 16 rows are packed in front of all others
        before, after = ([rows[0][:16], rows[0][16:]] for rows in (before, after))
    assert not torch.equal(before[0], after[0])
    assert all(torch.equal(one, other) for one, other in zip(before[1:], after[1:], strict=True))


@pytest.mark.parametrize("family", SCREENS)
@torch.no_grad()
def test_without_the_store_a_tile_of_many_has_the_bits_of_the_tile_alone(family: str) -> None:
    model, _ = models.make(family)
    inputs = processed(family, screen())
    assert_equal(tensors(ask(model, inputs)), one_by_one(model, inputs))


@pytest.mark.parametrize("family", SCREENS)
@torch.no_grad()
def test_one_tile_of_a_screen_is_encoded_if_one_has_changed(client: Client, family: str) -> None:
    model, _ = models.make(family)
    num_tiles = SCREENS[family][1]
    inputs = processed(family, screen())
    others = [with_other_tile(inputs, number) for number in range(num_tiles)]
    wanted = [one_by_one(model, other) for other in others]
    with cached_image_features(model, client) as features:
        assert count_tower_rows(partial(ask, model, inputs)) == num_tiles
        assert count_tower_rows(partial(ask, model, inputs)) == 0
        for other, features_of in zip(others, wanted, strict=True):
            assert count_tower_rows(partial(check, model, other, features_of)) == 1
    assert (features.num_encoded, features.num_bypassed) == (2 * num_tiles, 0)


@pytest.mark.parametrize("family", SCREENS)
@torch.no_grad()
def test_a_changed_place_of_a_screen_encodes_its_tile_and_the_overview(client: Client, family: str) -> None:
    model, _ = models.make(family)
    before, after = processed(family, screen()), processed(family, screen(changed=True))
    wanted = one_by_one(model, after)
    with cached_image_features(model, client) as features:
        ask(model, before)
        assert count_tower_rows(partial(check, model, after, wanted)) == 2
    assert features.num_encoded == SCREENS[family][1] + 2


@pytest.mark.parametrize("family", SCREENS)
@torch.no_grad()
def test_equal_tiles_of_one_screen_are_encoded_once(client: Client, family: str) -> None:
    model, _ = models.make(family)
    blank = processed(family, Image.new("RGB", (224, 224), "white"))
    with cached_image_features(model, client) as features:
        ask(model, blank)
    assert (features.num_images, features.num_encoded) == (SCREENS[family][1], 1)


@pytest.mark.parametrize("family", SCREENS)
@torch.no_grad()
def test_screens_of_several_sizes_in_one_call(client: Client, family: str) -> None:
    """Tiles are found by their content: in another call, order, and number of tiles that the call is filled up to."""
    model, _ = models.make(family)
    pixels = np.asarray(screen())
    screens = [screen(), Image.fromarray(pixels[:112]), screen(96), Image.fromarray(pixels[:, :112])]
    alone = [processed(family, one) for one in screens]
    together = [processed(family, *screens), processed(family, *screens[::-1])]
    wanted = [one_by_one(model, inputs) for inputs in alone + together]
    with cached_image_features(model, client) as features:
        for inputs, features_of in zip(alone, wanted, strict=False):
            check(model, inputs, features_of)
        num_encoded = features.num_encoded
        for inputs, features_of in zip(together, wanted[len(alone) :], strict=True):
            check(model, inputs, features_of)
    assert features.num_encoded == num_encoded


@torch.no_grad()
def test_minicpm_without_its_merger(client: Client) -> None:
    model, inputs = models.make("minicpmv")
    pixels, sizes = inputs["pixel_values"], inputs["target_sizes"]
    wanted = [
        model.get_image_features(part.contiguous(), size[None], downsample_mode="4x").pooler_output[0]
        for part, size in zip(torch.split(pixels, [96 * 14, 32 * 14], -1), sizes, strict=True)
    ]
    with cached_image_features(model, client) as features:
        ask(model, inputs)
        for _ in range(2):
            assert_equal(model.get_image_features(pixels, sizes, downsample_mode="4x").pooler_output, wanted)
    assert (features.num_encoded, features.num_bypassed) == (4, 0)


@torch.no_grad()
def test_minicpm_whose_tiles_depend_on_each_other_is_left_alone(client: Client) -> None:
    """Without a layer to insert the merger after, the model takes features of one tile for another's."""
    model, inputs = models.make("minicpmv")
    model.config.vision_config.insert_layer_id = -1
    wanted = tensors(ask(model, inputs))
    with cached_image_features(model, client) as features:
        assert_equal(tensors(ask(model, inputs)), wanted)
    assert (features.num_images, features.num_bypassed) == (0, 1)


@torch.no_grad()
def test_frames_of_a_video_are_found_like_tiles(client: Client) -> None:
    model, inputs = models.make("minicpmv")
    wanted = one_by_one(model, inputs)
    with cached_image_features(model, client) as features:
        ask(model, inputs)
        found = model.get_video_features(inputs["pixel_values"], inputs["target_sizes"]).pooler_output
    assert_equal(list(found), wanted)
    assert (features.num_images, features.num_encoded, features.num_bypassed) == (4, 2, 0)


@torch.no_grad()
def test_several_images_of_one_prompt_are_not_cut_by_onevision(client: Client) -> None:
    model, inputs = models.make("llava_onevision")
    pixels, sizes = inputs["pixel_values"], inputs["image_sizes"]
    asked = {"image_sizes": sizes, "batch_num_images": torch.tensor([2])}
    wanted = model.get_image_features(pixels, **asked).pooler_output
    with cached_image_features(model, client) as features:
        ask(model, inputs)
        found = model.get_image_features(pixels, **asked).pooler_output
    assert [len(each) for each in found] == [len(each) for each in wanted] == [17, 17]
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, wanted, strict=True))
    assert (features.num_images, features.num_encoded) == (8 + 2, 8)


@torch.no_grad()
def test_tiles_in_one_list_and_arguments_that_only_pack(client: Client) -> None:
    model, inputs = models.make("llava_onevision")
    pixels, sizes = inputs["pixel_values"], inputs["image_sizes"]
    listed = torch.cat([pixels[0], pixels[1, :3]])
    with cached_image_features(model, client) as features:
        first = model.get_image_features(pixels, sizes, vision_aspect_ratio="anyres_max_1").pooler_output
        second = model.get_image_features(listed, image_sizes=sizes, vision_aspect_ratio="anyres_max_1").pooler_output
        assert_equal(list(first), list(second))
        assert len(first[0]) < 88, "the rows of the first image are reduced"
        model.model.image_newline.add_(1)
        found = tensors(ask(model, inputs))
    assert_equal(found, one_by_one(model, inputs))
    assert (features.num_encoded, features.num_bypassed) == (8, 0)


@pytest.mark.parametrize("layers", [-1, [-2, -1]], ids=str)
@torch.no_grad()
def test_features_of_other_layers_are_other_records(client: Client, layers: Any) -> None:
    model, inputs = models.make("llava_next")
    if isinstance(layers, list):
        model.model.multi_modal_projector.linear_1 = torch.nn.Linear(2 * models.WIDTH, 64).eval()
    asked = {"image_sizes": inputs["image_sizes"], "vision_feature_layer": layers}
    wanted = model.get_image_features(inputs["pixel_values"], **asked).pooler_output
    with cached_image_features(model, client) as features:
        if not isinstance(layers, list):
            ask(model, inputs)
        before = features.num_encoded
        for num_encoded in (8, 8):
            found = model.get_image_features(inputs["pixel_values"], **asked).pooler_output
            assert features.num_encoded == before + num_encoded
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, wanted, strict=True))


@torch.no_grad()
def test_pixels_and_sizes_that_disagree_are_the_models_business(client: Client) -> None:
    model, inputs = models.make("llava_next")
    for wrong in (inputs["pixel_values"][:, :2], inputs["pixel_values"][0, 0]):
        with pytest.raises((RuntimeError, ValueError)) as wanted:
            ask(model, inputs | {"pixel_values": wrong})
        with cached_image_features(model, client), pytest.raises((RuntimeError, ValueError)) as found:
            ask(model, inputs | {"pixel_values": wrong})
        assert str(found.value) == str(wanted.value)


def test_a_second_process_encodes_no_tile(run_dir: Path) -> None:
    with StoreService(run_dir), Child(run_dir) as first, Child(run_dir) as second:
        assert first.hear() == second.hear() == {"ready": True}
        for family, num_tiles in (("llava_next", 8), ("minicpmv", 2), ("internvl", 2)):
            first.tell(family, "float32")
            alone = first.hear()
            assert (alone["encoded"], alone["images"]) == (num_tiles, num_tiles)
            second.tell(family, "float32")
            assert second.hear() == alone | {"encoded": 0}


@pytest.mark.parametrize("family", SCREENS)
@torch.no_grad()
def test_a_killed_service_is_a_miss_and_the_bits_stay(run_dir: Path, family: str) -> None:
    model, _ = models.make(family)
    inputs = processed(family, screen())
    changed = with_other_tile(inputs, 2)
    wanted, wanted_changed = one_by_one(model, inputs), one_by_one(model, changed)
    num_tiles = SCREENS[family][1]
    with LoneFrontend(run_dir, small_config(world_size=0)) as frontend, Client(run_dir) as client:
        with cached_image_features(model, client) as features:
            assert_equal(tensors(ask(model, inputs)), wanted)
            frontend.kill()
            assert_equal(tensors(ask(model, changed)), wanted_changed)
            assert features.num_encoded == num_tiles + 1, "hits need no service that lives"
            frontend.start()

            def num_encoded() -> int:
                before = features.num_encoded
                assert_equal(tensors(ask(model, changed)), wanted_changed)
                return features.num_encoded - before

            eventually(num_encoded, lambda count: count == 0, "it is kept again")
        assert features.num_bypassed == 0
