"""Small items of each modality that a checkpoint takes, to measure the outputs of its towers.

Two of each, of different shape: dimensions that differ between them vary from item to item.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mmcached.cache.checkpoints.checkpoint import FIELD, Checkpoint
from mmcached.cache.checkpoints.frames import GRID, PIXELS, FrameGrid, WholeClip
from mmcached.cache.checkpoints.sounds import FEATURES, MASK, Chunked, Filled
from mmcached.wire.errors import ConfigError
from mmcached.wire.vocabulary import Modality

Record = Mapping[str, torch.Tensor]
_SIZES = ((64, 64), (384, 192))


def examples(checkpoint: Checkpoint, modality: Modality) -> list[Record]:
    """Return records as the frontend makes them, all grey or silent.

    Raises `ConfigError` if the image processor lacks an input of the tower.
    """
    counting = checkpoint.countings[modality]
    if isinstance(counting, FrameGrid):
        patch, merge = counting.patches(checkpoint.processors[modality])
        return [_frames(patch, rows * merge, columns * merge) for rows, columns in ((1, 1), (2, 3))]
    if isinstance(counting, WholeClip):
        shape = (1, counting.num_frames(checkpoint.model), 3, *counting.crop(checkpoint.processors[modality]))
        return [{name: torch.zeros(shape, dtype=torch.uint8) for name in counting.inputs}] * 2
    if isinstance(counting, (Filled, Chunked)):
        return [_sound(checkpoint, counting, part) for part in (1, 2)]
    return [_picture(checkpoint, size) for size in _SIZES]


def _sound(checkpoint: Checkpoint, counting: Filled | Chunked, part: int) -> Record:
    settings = checkpoint.processors["audio"]
    num_samples = counting.window(checkpoint.model, settings) // part
    _, num_frames = counting.frames(num_samples, checkpoint.model, settings)
    features = torch.zeros(1, int(settings.get("feature_size", 80)), num_frames)
    made = {FEATURES: features, MASK: torch.ones(1, num_frames, dtype=torch.int64)}
    return {name: made[name] for name in counting.inputs}


def _frames(patch: int, rows: int, columns: int) -> Record:
    pixels = torch.zeros(rows * columns, 3 * 2 * patch**2, dtype=torch.uint8)
    return {PIXELS: pixels, GRID: torch.tensor([[1, rows, columns]])}


def _picture(checkpoint: Checkpoint, size: tuple[int, int]) -> Record:
    from PIL import Image

    from mmcached.pictures.processor import PictureProcessor

    made = PictureProcessor(checkpoint.path).tensors(Image.new("RGB", size, "gray"))
    names = checkpoint.countings["image"].inputs
    if missing := [name for name in names if name not in made]:
        raise ConfigError(FIELD, str(checkpoint.path), f"its image processor does not return {missing[0]}")
    return {name: torch.from_numpy(made[name]) for name in names}
