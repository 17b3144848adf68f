"""Different contents have different names; the same content has one, whatever holds it."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmcached.worker.encoders.content import Content, add_image


def name_of(*values: Any) -> str:
    content = Content()
    for place, value in enumerate(values):
        content.add(f"value {place}", value)
    return content.hexdigest()


def name_of_image(image: Any) -> str:
    content = Content()
    add_image(content, image)
    return content.hexdigest()


def test_what_differs_is_named_apart() -> None:
    values: list[Any] = [
        torch.zeros(4),
        torch.zeros(2, 2),
        torch.zeros(4, dtype=torch.int32),
        torch.zeros(8, dtype=torch.bfloat16),
        -torch.zeros(4),
        bytes(16),
        [0, 0, 0, 0],
        None,
        False,
        0,
        0.0,
        "0",
    ]
    assert len({name_of(value) for value in values}) == len(values)
    assert name_of("ab", "c") != name_of("a", "bc")
    assert name_of(b"ab", b"c") != name_of(b"a", b"bc")


def test_the_same_content_has_one_name() -> None:
    values = torch.arange(12).reshape(3, 4)
    assert name_of(values) == name_of(values.numpy()) == name_of(values.t().contiguous().t())
    assert name_of({"a": 1, "b": 2}) == name_of({"b": 2, "a": 1})


def test_what_no_name_can_be_given_is_refused() -> None:
    for value in (object(), float("nan"), {1, 2}):
        with pytest.raises((TypeError, ValueError)):
            name_of(value)
    for url in ("https://example.org/cat.png", "cat.png", None):
        with pytest.raises(TypeError):
            name_of_image(url)


def test_images_are_named_by_mode_and_pixels() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (8, 6, 4), np.uint8)
    images = [Image.fromarray(pixels), Image.fromarray(pixels).transpose(Image.Transpose.ROTATE_90)]
    images += [Image.fromarray(pixels[..., :3]), Image.fromarray(pixels[..., 0]), Image.fromarray(pixels[1:])]
    names = {name_of_image(image) for image in images} | {name_of_image(pixels), name_of_image(torch.tensor(pixels))}
    assert len(names) == 7
    file = BytesIO()
    images[2].save(file, "PNG")
    assert name_of_image(Image.open(file)) == name_of_image(images[2]), "not decoded yet, and decoded"


def test_palette_and_transparency_are_part_of_an_image() -> None:
    indexed = Image.new("P", (4, 4))
    indexed.putpalette([1, 2, 3] * 256)
    names = {name_of_image(indexed)}
    indexed.putpalette([3, 2, 1] * 256)
    names.add(name_of_image(indexed))
    for transparency in (0, 1, b"\x00\xff"):
        indexed.info["transparency"] = transparency
        names.add(name_of_image(indexed))
    assert len(names) == 5
