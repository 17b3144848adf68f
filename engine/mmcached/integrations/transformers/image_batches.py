"""Joins the results of an image processor for single images to its result for their batch.

    rows      pixels of one image after those of another                             most processors
    tiles     `(images, tiles, …)`, padded with zeros to the largest number of tiles  LLaVA-NeXT, LLaVA-OneVision
    columns   patches of one tile after those of another, in the last dimension       MiniCPM-V

A processor with a row in `BATCHES` treats the images of a batch one by one; a test checks each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch

Arrays = dict[str, torch.Tensor]
"""The processor's result for one image, by name."""
Setting = Callable[[str], Any]
"""Returns an argument of the call, or else the processor's setting of that name, or None."""
PIXELS = "pixel_values"


class Batch:
    """Joins rows: the pixels of one image after those of another.

    Attributes:
        open_axis: Dimension of the pixels whose size depends on the image, beside the first; None if none does.
        plain: Names of results that are lists, not tensors.
    """

    open_axis: int | None = None
    plain: tuple[str, ...] = ()

    def groups(self, images: Any, num_images: int) -> list[int] | None:
        """Return the sizes of the groups in which the processor takes images; None if it takes none in this form."""
        return [1] * num_images

    def is_joined(self, setting: Setting) -> bool:
        """Return whether the result for several images is made of those for each."""
        return not (setting("do_pad") or setting("pad_size"))

    def mismatch(self, record: Arrays, setting: Setting, *, is_grouped: bool) -> str | None:
        """Return why the parts of a record do not fit each other; None if they do."""
        num_rows = len(record[PIXELS])
        if "image_grid_thw" in record:
            wanted = record["image_grid_thw"].prod(-1)
        elif "num_crops" in record:
            wanted = record["num_crops"] + 1
        else:
            wanted = record.get("num_patches", torch.ones(1, dtype=torch.int64))
        return None if wanted.tolist() == [num_rows] else f"{num_rows} rows instead of {wanted.tolist()}"

    def join(self, found: Sequence[Arrays], groups: Sequence[int]) -> Arrays:
        """Return the result for a batch, from those for its images and the sizes of its groups.

        The tensors of a single image are returned themselves, those of several are copied.
        """
        return {name: _joined([arrays[name] for arrays in found]) for name in found[0]}


class _Tiles(Batch):
    """Pads the tiles of all images to the largest number."""

    open_axis = 1

    def is_joined(self, setting: Setting) -> bool:
        return bool(setting("do_pad"))  # else the tiles of several images make no tensor

    def mismatch(self, record: Arrays, setting: Setting, *, is_grouped: bool) -> str | None:
        pixels, sizes = record[PIXELS], record["image_sizes"]
        if len(pixels) != 1 or len(sizes) != 1 or sizes.min() < 1:
            return f"{len(pixels)} images of sizes {sizes.tolist()}"
        wanted = 1 if is_grouped else _num_tiles(sizes[0].tolist(), setting("image_grid_pinpoints"), pixels.shape[-2])
        return None if pixels.shape[1] == wanted else f"{pixels.shape[1]} tiles instead of {wanted}"

    def join(self, found: Sequence[Arrays], groups: Sequence[int]) -> Arrays:
        most = max(arrays[PIXELS].shape[1] for arrays in found)
        return super().join([{**arrays, PIXELS: _padded(arrays[PIXELS], most)} for arrays in found], groups)


class _GroupedTiles(_Tiles):
    """Tells images in lists of several apart: the processor makes one tile of each of these."""

    def groups(self, images: Any, num_images: int) -> list[int] | None:
        if not isinstance(images, list):
            groups = [1]
        elif all(isinstance(each, list) for each in images):
            groups = [len(each) for each in images if each]
        else:
            groups = [1] * len(images)
        return groups if sum(groups) == num_images else None

    def join(self, found: Sequence[Arrays], groups: Sequence[int]) -> Arrays:
        return {**super().join(found, groups), "batch_num_images": torch.tensor(groups)}


class _Columns(Batch):
    """Joins the patches of all tiles in the last dimension."""

    open_axis = 3
    plain = ("grids", "num_patches_per_image")

    def mismatch(self, record: Arrays, setting: Setting, *, is_grouped: bool) -> str | None:
        pixels, sizes, grid = record[PIXELS], record["target_sizes"], record["grids"]
        num_tiles = len(sizes)
        if len(pixels) != 1 or num_tiles == 0 or sizes.min() < 1:
            return f"{len(pixels)} images with tiles of sizes {sizes.tolist()}"
        if record["num_patches_per_image"].tolist() != [num_tiles] or (grid.prod(-1) + 1).tolist() != [num_tiles]:
            return f"{num_tiles} tiles instead of those of grid {grid.tolist()}"
        wanted = int(sizes.prod(-1).sum()) * pixels.shape[2]
        return None if pixels.shape[-1] == wanted else f"{pixels.shape[-1]} columns instead of {wanted}"

    def join(self, found: Sequence[Arrays], groups: Sequence[int]) -> Arrays:
        pixels = _joined([arrays[PIXELS] for arrays in found], dim=-1)
        others = [{name: array for name, array in arrays.items() if name != PIXELS} for arrays in found]
        return {PIXELS: pixels, **super().join(others, groups)}


_BATCHES: Mapping[str, Batch] = {
    **dict.fromkeys(("CLIP", "Siglip", "Llava", "Qwen2VL", "Gemma3", "GotOcr2"), Batch()),
    "LlavaNext": _Tiles(),
    "LlavaOnevision": _GroupedTiles(),
    "MiniCPMV4_6": _Columns(),
}
BATCHES: Mapping[str, Batch] = {
    f"{name}ImageProcessor{backend}": batch for name, batch in _BATCHES.items() for backend in ("", "Pil")
}
"""By class of Transformers; InternVL has the processor of GotOcr2, MiniCPM-V 4.7 has that of 4.6."""


def _joined(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim)


def _num_tiles(size: Sequence[int], pinpoints: Any, edge: int) -> int:
    """Return the number of tiles into which LLaVA's models expect an image `(height, width)` to be cut."""
    from transformers.image_processing_utils import select_best_resolution

    height, width = cast("tuple[int, int]", select_best_resolution(size, pinpoints))
    return 1 + math.ceil(height / edge) * math.ceil(width / edge)


def _padded(pixels: torch.Tensor, num_tiles: int) -> torch.Tensor:
    missing = num_tiles - pixels.shape[1]
    return torch.nn.functional.pad(pixels, [0] * 7 + [missing]) if missing else pixels
