"""Colours are normalised one by one; `tests/hosts/transformers` compares the bits with those of its processors."""

from __future__ import annotations

import torch

from mmcached.cache.checkpoints.frames import WholeClip
from mmcached.worker.encoders.pixels import normalised

SETTINGS = {"image_mean": [0.5, 0.25, 0.0], "image_std": [0.5, 1.0, 2.0]}


def test_each_colour_has_its_mean_and_deviation() -> None:
    pixels = torch.randint(0, 256, (1, 4, 3, 2, 5), dtype=torch.uint8)
    mean, std = (torch.tensor(each)[:, None, None] for each in SETTINGS.values())
    wanted = (pixels / 255 - mean) / std
    found = normalised(pixels, WholeClip(), SETTINGS)
    assert found.dtype == torch.float32
    assert torch.allclose(found, wanted, atol=1e-6)
    patches = pixels[0].flatten(1)
    assert torch.equal(normalised(patches, WholeClip(), SETTINGS), found[0].flatten(1))
