"""A record that has not the form of a model's features never reaches the model, whoever has put it under its key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmcached.client import Client
from mmcached.integrations.transformers import CachedImageProcessor, cached_image_features, features, image_processor
from mmcached.integrations.transformers.records import find_or_make
from tests.hosts.transformers import models
from tests.hosts.transformers.outputs import ask, assert_equal, one_by_one, tensors
from tests.hosts.transformers.test_image_processor import processor_of, tiled

Record = dict[str, Any]
Falsify = Callable[[torch.Tensor], torch.Tensor]


def with_element(value: float) -> Falsify:
    def falsify(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.clone()
        changed.view(-1)[-1] = value
        return changed

    return falsify


TENSORS: dict[str, Falsify] = {
    "half the width": lambda tensor: tensor[..., : tensor.shape[-1] // 2].contiguous(),
    "one rank more": lambda tensor: tensor[None],
    "one rank less": lambda tensor: tensor.flatten(),
    "one row short": lambda tensor: tensor[:-1].contiguous(),
    "one row more": lambda tensor: torch.cat([tensor, tensor[:1]]),
    "int64": lambda tensor: tensor.to(torch.int64),
    "fp8": lambda tensor: tensor.to(torch.float8_e4m3fn),
    "fp16": lambda tensor: tensor.half(),
    "fp32": lambda tensor: tensor.float(),
    "NaN": with_element(float("nan")),
    "inf": with_element(float("inf")),
}


def with_pixels(record: Record, falsify: Falsify) -> Record:
    return record | {"pixel_values": falsify(record["pixel_values"])}


def with_part(record: Record, falsify: Falsify, place: str) -> Record:
    """Return a record of which one tensor is false: the first, or the last one, which may lie in a list."""
    name = list(record)[0 if place == "the first" else -1]
    part = record[name]
    return record | {name: [*part[:-1], falsify(part[-1])] if isinstance(part, list) else falsify(part)}


RECORDS: dict[str, Callable[[Record], Any]] = {
    **{
        f"{name} of {place}": partial(with_part, falsify=falsify, place=place)
        for name, falsify in TENSORS.items()
        for place in ("the first", "the last")
    },
    "a name is missing": lambda record: dict(list(record.items())[1:]),
    "a name too many": lambda record: record | {"more": torch.zeros(1)},
    "no tensor": lambda record: dict.fromkeys(record, "tensor"),
    "None": dict.fromkeys,
}


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are asked for."""
    asked: list[str] = []

    def find(client: Client, keys: list[str], *values: Any, **named: Any) -> Any:
        asked.extend(keys)
        return find_or_make(client, keys, *values, **named)

    for module in (features, image_processor):
        monkeypatch.setattr(module, "find_or_make", find)
    return asked


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "siglip_tower"])
@torch.no_grad()
def test_the_model_gives_its_own_features_instead(
    client: Client, keys: list[str], family: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    model, inputs = models.make(family, torch.bfloat16)
    wanted = one_by_one(model, inputs)
    with cached_image_features(model, client) as first:
        ask(model, inputs)
    own = {key: client.get(key, tensors="torch") for key in set(keys)}
    num_tried = 0
    for name, falsify in RECORDS.items():
        for key, hit in own.items():
            assert hit is not None
            client.drop(key)
            assert client.put(key, falsify(hit.record))
        for view in (False, True):
            with cached_image_features(model, client, view=view) as asked:
                assert_equal(tensors(ask(model, inputs)), wanted)
            # The first one has replaced what was false.
            assert (asked.num_encoded, asked.num_refused) == ((0, 0) if view else (2, 2)), name
        num_tried += 1
    assert num_tried == len(RECORDS)
    assert first.num_refused == 0
    assert "a record of the store is not used: " in caplog.text


@torch.no_grad()
def test_a_model_that_gives_nan_itself_goes_on_as_without(client: Client) -> None:
    model, inputs = models.make("llava")
    model.model.multi_modal_projector.linear_2.bias[0] = float("nan")
    wanted = one_by_one(model, inputs)
    with cached_image_features(model, client) as asked:
        for _ in range(2):
            found = tensors(ask(model, inputs))
            assert all(torch.equal(one.nan_to_num(), two.nan_to_num()) for one, two in zip(found, wanted, strict=True))
            assert all(each.isnan().any() for each in found)
    assert (asked.num_encoded, asked.num_refused) == (4, 2)


@pytest.mark.parametrize("family", [maker.__name__ for maker in (*models.GENERATIVE, *models.TOWERS)])
@torch.no_grad()
def test_features_under_autocast_are_found_or_left_alone(client: Client, family: str) -> None:
    model, inputs = models.make(family)
    with torch.autocast("cpu", torch.bfloat16), cached_image_features(model, client) as asked:
        found = [tensors(ask(model, inputs)) for _ in range(2)]
    is_bypassed = family in ("gemma3", "clip_tower", "siglip_tower")
    assert_equal(*found)
    counts = (asked.num_encoded, asked.num_refused, asked.num_bypassed)
    assert counts == ((0, 0, 2) if is_bypassed else (2, 0, 0))


@torch.no_grad()
def test_a_tower_of_two_dtypes_is_left_alone(client: Client) -> None:
    model, inputs = models.make("llava")
    model.model.multi_modal_projector.double()
    model.model.vision_tower.double()
    model.model.multi_modal_projector.act.register_parameter("extra", torch.nn.Parameter(torch.ones(1)))
    with cached_image_features(model, client) as asked:
        ask(model, inputs | {"pixel_values": inputs["pixel_values"].double()})
    assert (asked.num_images, asked.num_bypassed) == (0, 1)


PIXELS: dict[str, Falsify] = TENSORS | {"fp32": lambda tensor: tensor.double()}
TILES: dict[str, Falsify] = PIXELS | {
    "one tile short": lambda tensor: tensor[:, :-1].contiguous(),
    "one tile more": lambda tensor: torch.cat([tensor, tensor[:, :1]], dim=1),
}
COLUMNS: dict[str, Falsify] = PIXELS | {
    "one patch short": lambda tensor: tensor[..., :-14].contiguous(),
    "one patch more": lambda tensor: torch.cat([tensor, tensor[..., :14]], dim=-1),
}
PROCESSED: dict[str, dict[str, Falsify]] = {
    "CLIPImageProcessorPil": PIXELS,
    "Qwen2VLImageProcessorPil": PIXELS,
    "Gemma3ImageProcessorPil": PIXELS,
    "GotOcr2ImageProcessorPil": PIXELS,
    "LlavaNextImageProcessorPil": TILES,
    "LlavaOnevisionImageProcessorPil": TILES,
    "MiniCPMV4_6ImageProcessorPil": COLUMNS,
}
OTHER_PARTS: dict[str, dict[str, list[Any]]] = {
    "LlavaNextImageProcessorPil": {"image_sizes": [[[0, 9]], [[-60, 90]], [[60, 90], [60, 90]], [[90, 600]]]},
    "MiniCPMV4_6ImageProcessorPil": {
        "target_sizes": [[], [[0, 9]], [[-4, -4]]],
        "grids": [[[0, 0]], [[7, 7]], [[1, 2], [1, 2]]],
        "num_patches_per_image": [[1], [99], []],
    },
}
"""By processor and part: values that do not fit the pixels."""


@pytest.mark.parametrize("name", OTHER_PARTS)
def test_parts_that_do_not_fit_the_pixels(client: Client, keys: list[str], name: str) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), np.uint8))
    processor = tiled(name)
    wanted = processor(image, return_tensors="pt")
    CachedImageProcessor(processor, client)(image, return_tensors="pt")
    (key,) = set(keys)
    hit = client.get(key, tensors="torch")
    assert hit is not None
    for part, values in OTHER_PARTS[name].items():
        own = hit.record[part]
        for value in values:
            client.drop(key)
            assert client.put(key, {**hit.record, part: torch.tensor(value, dtype=own.dtype).view(-1, *own.shape[1:])})
            cached = CachedImageProcessor(processor, client)
            found = cached(image, return_tensors="pt")
            assert torch.equal(found["pixel_values"], wanted["pixel_values"])
            assert (cached.num_processed, cached.num_refused) == (1, 1), (part, value)


@pytest.mark.parametrize("name", PROCESSED)
def test_the_processor_gives_its_own_pixels_instead(client: Client, keys: list[str], name: str) -> None:
    images = [Image.fromarray(np.random.default_rng(seed).integers(0, 255, (60, 90, 3), np.uint8)) for seed in range(2)]
    processor = processor_of(name) if PROCESSED[name] is PIXELS else tiled(name)
    wanted = processor(images, return_tensors="pt")
    CachedImageProcessor(processor, client)(images, return_tensors="pt")
    own = {key: client.get(key, tensors="torch") for key in set(keys)}
    false: list[Callable[[Record], Any]] = [
        partial(with_pixels, falsify=falsify) for falsify in PROCESSED[name].values()
    ]
    for falsify in [*false, RECORDS["a name is missing"], RECORDS["a name too many"], RECORDS["None"]]:
        for key, hit in own.items():
            assert hit is not None
            client.drop(key)
            assert client.put(key, falsify(hit.record))
        cached = CachedImageProcessor(processor, client)
        for num_processed in (2, 2):
            found = cached(images, return_tensors="pt")
            assert set(found) == set(wanted)
            assert all(torch.equal(*map(torch.as_tensor, (found[part], wanted[part]))) for part in wanted)
            assert (cached.num_processed, cached.num_refused) == (num_processed, 2)
