"""Normalizes the colours of uint8 frames, bit-identically to the video processors of Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmcached.cache.checkpoints.frames import FrameGrid, WholeClip

_RESCALE = 1 / 255


def normalised(pixels: torch.Tensor, counting: FrameGrid | WholeClip, settings: Mapping[str, Any]) -> torch.Tensor:
    """Return pixels as float32.

    Args:
        pixels: uint8, (num_patches, 3 * m) or (1, num_frames, 3, height, width).
        settings: of the video processor.
    """
    rows = pixels.shape[0] if pixels.ndim == 2 else pixels.shape[1]
    # As in Transformers: rescaling is folded into mean and standard deviation, in float32.
    factor = 1 / float(settings.get("rescale_factor", _RESCALE))
    colours = (torch.tensor(each, dtype=torch.float32, device=pixels.device) for each in counting.colours(settings))
    mean, std = (each[:, None] * factor for each in colours)
    return ((pixels.reshape(rows, 3, -1).float() - mean) / std).reshape(pixels.shape)
