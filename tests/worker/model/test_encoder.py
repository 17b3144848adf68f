"""The vision encoder against plain integers, and what its embeddings depend on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.wire.config import ModelConfig
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.model.encoder import VisionEncoder
from tests.house.drawing import examples
from tests.worker.oracle import Image, Oracle, random_image

CONFIG = ModelConfig(seed=3, hidden_size=8, num_heads=2, encoder_width=12, patch_size=2, max_patches_per_image=9)
ENCODER = VisionEncoder(CONFIG, torch.device("cpu"))


def encode(image: Image, encoder: VisionEncoder = ENCODER) -> torch.Tensor:
    return encoder.encode(torch.from_numpy(image.pixel_values), image.grid)


@settings(max_examples=examples(15))
@given(st.integers(0, 2**32), st.sampled_from([(1, 1), (1, 4), (2, 3), (3, 3)]))
def test_equals_plain_integers(seed: int, grid: tuple[int, int]) -> None:
    image = random_image(np.random.default_rng(seed), grid, CONFIG.patch_size)
    embeddings = encode(image)
    assert embeddings.dtype == torch.int32
    assert np.array_equal(embeddings.numpy(), Oracle(CONFIG).encode(image))


def test_default_sizes_equal_plain_integers() -> None:
    config = ModelConfig()
    image = random_image(np.random.default_rng(0), (3, 4), config.patch_size)
    embeddings = encode(image, VisionEncoder(config, torch.device("cpu")))
    assert np.array_equal(embeddings.numpy(), Oracle(config).encode(image))


def test_every_embedding_depends_on_every_patch() -> None:
    image = random_image(np.random.default_rng(1), (3, 3), CONFIG.patch_size)
    before = encode(image)
    for patch in range(9):
        changed = image.pixel_values.copy()
        changed[patch, 5] ^= 1
        after = encode(Image(changed, image.grid))
        assert (after != before).any(dim=1).all()


def test_embeddings_depend_on_the_order_and_the_grid() -> None:
    image = random_image(np.random.default_rng(2), (2, 4), CONFIG.patch_size)
    before = encode(image)
    swapped = Image(image.pixel_values[[1, 0, *range(2, 8)]], image.grid)
    assert (encode(swapped) != before).any(dim=1).all()
    assert (encode(Image(image.pixel_values, (4, 2))) != before).any(dim=1).all()


def test_leaves_its_input_alone_and_keeps_no_view_of_it() -> None:
    image = random_image(np.random.default_rng(3), (2, 2), CONFIG.patch_size)
    pixels = torch.from_numpy(image.pixel_values.copy())
    embeddings = ENCODER.encode(pixels, image.grid)
    kept = embeddings.clone()
    assert np.array_equal(pixels.numpy(), image.pixel_values)
    pixels.zero_()
    assert torch.equal(embeddings, kept)


@pytest.mark.parametrize(
    ("pixels", "grid", "field"),
    [
        (torch.zeros((4, 12)), (2, 2), "pixel_values.dtype"),
        (torch.zeros((4, 11), dtype=torch.uint8), (2, 2), "pixel_values.shape"),
        (torch.zeros((48,), dtype=torch.uint8), (2, 2), "pixel_values.shape"),
        (torch.zeros((0, 12), dtype=torch.uint8), (0, 0), "pixel_values"),
        (torch.zeros((10, 12), dtype=torch.uint8), (2, 5), "pixel_values"),
        (torch.zeros((4, 12), dtype=torch.uint8), (2, 3), "grid"),
        (torch.zeros((4, 12), dtype=torch.uint8), (-2, -2), "grid"),
    ],
)
def test_refuses_what_does_not_fit(pixels: torch.Tensor, grid: tuple[int, int], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ENCODER.encode(pixels, grid)
    assert caught.value.details["field"] == field


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_bits() -> None:
    image = random_image(np.random.default_rng(4), (3, 3), CONFIG.patch_size)
    assert torch.equal(encode(image, VisionEncoder(CONFIG, torch.device("cuda"))).cpu(), encode(image))
