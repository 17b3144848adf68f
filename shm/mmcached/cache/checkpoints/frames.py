"""The size and number of a tower's video frames, and the number of their embeddings.

`FrameGrid` (Qwen) takes two frames, with an embedding for each square of merged patches, as of an image. `WholeClip`
(VideoMAE) takes all of them: attention reaches over the clip, which is one slice (`is_sliceable`). The size of a frame
follows from the file and the settings of the checkpoint's video processor. Invariant: it does not depend on the number
of wanted frames, so that clips of one file share slices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcached.cache.checkpoints.counting import Settings, merged_side, squares_of
from mmcached.clips.frame_sizes import BICUBIC, EdgeSizes, FrameSizes
from mmcached.wire.errors import InvalidRequest

PIXELS = "pixel_values_videos"
GRID = "video_grid_thw"


@dataclass(frozen=True, slots=True)
class FrameGrid:
    """Squares of patches of two frames, for a tower that attends to no other frame.

    Attributes:
        patch_size, mean, std, min_pixels, max_pixels: Defaults if the video processor has none.
        num_sharing: Frames that share the pixels in the video processor's settings.
        max_squares: Limit of merged squares per frame, unless the settings have one; 0 for no limit.
    """

    patch_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min_pixels: int
    max_pixels: int
    num_sharing: int = 1
    max_squares: int = 0
    inputs: tuple[str, ...] = (PIXELS, GRID)
    is_sliceable = True

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        return squares_of(tensors[GRID], GRID) // merged_side(model) ** 2

    def largest(self, model: Settings, processor: Settings) -> int:
        sizes = self.sizes(processor)
        return max(1, sizes.max_pixels // sizes.side**2)

    def patches(self, processor: Settings) -> tuple[int, int]:
        """Return the side of a patch in pixels, and the number of patches on a side of an embedding's square."""
        return int(processor.get("patch_size", self.patch_size)), int(processor.get("merge_size", 2))

    def colours(self, processor: Settings) -> tuple[Sequence[float], Sequence[float]]:
        """Return mean and standard deviation of each colour, of values up to 1."""
        return processor.get("image_mean") or self.mean, processor.get("image_std") or self.std

    def sizes(self, processor: Settings) -> FrameSizes:
        size = processor.get("size") or {}
        least = processor.get("min_pixels") or size.get("shortest_edge") or self.min_pixels
        most = processor.get("max_pixels") or size.get("longest_edge") or self.max_pixels
        patch, merge = self.patches(processor)
        side = patch * merge
        most = int(most) // self.num_sharing
        if self.max_squares and processor.get("cap_pixels_per_frame") is not False:
            squares = int(processor.get("max_video_tokens", self.max_squares))
            most = max(min(most, squares * side**2), int(int(least) * 1.05))
        least, resample = int(least) // self.num_sharing, int(processor.get("resample", BICUBIC))
        return FrameSizes(side=side, min_pixels=least, max_pixels=most, lifts=self.num_sharing > 1, resample=resample)

    def num_frames(self, model: Settings) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class WholeClip:
    """Cubes of frames of which each embedding needs all."""

    inputs: tuple[str, ...] = ("pixel_values",)
    is_sliceable = False

    def count(self, model: Settings, tensors: Mapping[str, Any]) -> int:
        num_clips, num_frames, _, height, width = (int(size) for size in tensors["pixel_values"].shape)
        if num_clips != 1:
            raise InvalidRequest("pixel_values", f"{num_clips} clips", "must be of one")
        side = int(model.get("patch_size", 16))
        return num_frames // int(model.get("tubelet_size", 2)) * (height // side) * (width // side)

    def largest(self, model: Settings, processor: Settings) -> int:
        height, width = self.crop(processor)
        side = int(model.get("patch_size", 16))
        return self.num_frames(model) // int(model.get("tubelet_size", 2)) * (height // side) * (width // side)

    def num_frames(self, model: Settings) -> int:
        return int(model.get("num_frames", 16))

    def sizes(self, processor: Settings) -> EdgeSizes:
        """Return the frame sizes before cropping."""
        edge = int((processor.get("size") or {}).get("shortest_edge", 224))
        return EdgeSizes(edge=max(edge, *self.crop(processor)), resample=int(processor.get("resample", 2)))

    def crop(self, processor: Settings) -> tuple[int, int]:
        """Return height and width of the centre crop in pixels."""
        size = processor.get("crop_size") or {}
        return int(size.get("height", 224)), int(size.get("width", 224))

    def colours(self, processor: Settings) -> tuple[Sequence[float], Sequence[float]]:
        """Return mean and standard deviation of each colour, of values up to 1."""
        half = (0.5, 0.5, 0.5)
        return processor.get("image_mean") or half, processor.get("image_std") or half
