"""Chooses the size of a video's frames as video processors of Transformers do, following their aspect ratio.

    FrameSizes    a number of pixels, and sides that are multiples of a square    Qwen
    EdgeSizes     the shorter side; cropping of the longer one is done elsewhere  VideoMAE

The numbers come from the encoder's checkpoint. Invariant: the size does not depend on the number of frames.
"""

from __future__ import annotations

import math

import msgspec

from mmcached.wire.errors import ClipTooLarge

MAX_ASPECT_RATIO = 200
MAX_EDGE_RATIO = 16


BICUBIC = 3
"""Number of the filter in Pillow and Transformers."""


class FrameSizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """The rule of one checkpoint; its sizes are pixels.

    Attributes:
        side: Both sides of a frame are multiples of it.
        min_pixels, max_pixels: Pixels of a frame, as far as its aspect ratio and `side` allow.
        lifts: Whether a frame with a shorter side is first enlarged to it.
        resample: Pillow's number of the filter.
    """

    side: int
    min_pixels: int
    max_pixels: int
    lifts: bool
    resample: int = BICUBIC

    def of(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height to which a frame is scaled; `ClipTooLarge` if one side is much longer than the other.

        >>> FrameSizes(side=28, min_pixels=784, max_pixels=28 * 28 * 20, lifts=False).of(640, 360)
        (140, 84)
        >>> FrameSizes(side=28, min_pixels=28 * 28 * 20, max_pixels=28 * 28 * 100, lifts=False).of(64, 48)
        (168, 112)
        """
        found = f"{width} x {height} pixels"
        if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
            raise ClipTooLarge("video", found, f"one side at most {MAX_ASPECT_RATIO} times the other")
        if self.lifts and min(width, height) < self.side:
            scale = max(self.side / height, self.side / width)
            width, height = int(width * scale), int(height * scale)
        # Sides before products, so that floating point rounds as in Transformers.
        wide, high = (round(each / self.side) * self.side for each in (width, height))
        if wide * high > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            wide, high = (max(self.side, math.floor(each / scale / self.side) * self.side) for each in (width, height))
        elif wide * high < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            wide, high = (math.ceil(each * scale / self.side) * self.side for each in (width, height))
        if wide * high > self.max_pixels:  # Transformers would accept it
            raise ClipTooLarge("video", found, f"a form that fits into {self.max_pixels} pixels at {self.side} a side")
        return wide, high


class EdgeSizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag=True):
    """The rule of one checkpoint: `edge` is the shorter side of a frame in pixels, `resample` as in `FrameSizes`."""

    edge: int
    resample: int = BICUBIC

    @property
    def side(self) -> int:
        return 1

    @property
    def max_pixels(self) -> int:
        return self.edge**2 * MAX_EDGE_RATIO

    def of(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height to which a frame is scaled; `ClipTooLarge` if one side is much longer than the other.

        >>> EdgeSizes(edge=224).of(640, 360)
        (398, 224)
        """
        if max(width, height) > MAX_EDGE_RATIO * min(width, height):
            limit = f"one side at most {MAX_EDGE_RATIO} times the other"
            raise ClipTooLarge("video", f"{width} x {height} pixels", limit)
        if width <= height:
            return self.edge, int(self.edge * height / width)
        return int(self.edge * width / height), self.edge


Sizes = FrameSizes | EdgeSizes
