"""Chooses an image's grid of patches, following its aspect ratio.

640 x 400 px, patch 32, 64 patches at most    20 x 13 patches are too many    -> scaled to 10 x 6
"""

from __future__ import annotations

from math import isqrt


def choose_grid(width: int, height: int, *, patch_size: int, max_patches: int) -> tuple[int, int]:
    """Return `(rows, columns)` of patches for an image: its size rounded to patches, or scaled down to the limit.

    At least one by one, never more than the limit; integers only, so that all machines agree.

    >>> choose_grid(640, 400, patch_size=32, max_patches=64)
    (6, 10)
    >>> choose_grid(64, 33, patch_size=32, max_patches=64)
    (1, 2)
    >>> choose_grid(9000, 10, patch_size=32, max_patches=64)
    (1, 64)
    """
    rows = max(1, (2 * height + patch_size) // (2 * patch_size))
    columns = max(1, (2 * width + patch_size) // (2 * patch_size))
    if rows * columns <= max_patches:
        return rows, columns
    # floor(sqrt(limit * h / w)) * floor(sqrt(limit * w / h)) <= limit. Only where a side is raised to 1 must the other
    # side shrink.
    rows = min(rows, max(1, isqrt(max_patches * height // width)))
    columns = min(columns, max(1, isqrt(max_patches * width // height)))
    return min(rows, max_patches // columns or 1), min(columns, max_patches)


def scaled_size(size: tuple[int, int], patch_size: int, max_patches: int) -> tuple[int, int]:
    """Return width and height of an image's grid in pixels.

    >>> scaled_size((640, 400), patch_size=32, max_patches=64)
    (320, 192)
    """
    rows, columns = choose_grid(*size, patch_size=patch_size, max_patches=max_patches)
    return columns * patch_size, rows * patch_size
