"""The grid follows the picture's form, and keeps the limit of patches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmcached.pictures.grid import choose_grid


@given(st.integers(1, 20_000), st.integers(1, 20_000), st.integers(1, 64), st.integers(1, 300))
def test_grid_properties(width: int, height: int, patch_size: int, max_patches: int) -> None:
    rows, columns = choose_grid(width, height, patch_size=patch_size, max_patches=max_patches)
    assert 1 <= rows * columns <= max_patches
    natural = [max(1, (2 * side + patch_size) // (2 * patch_size)) for side in (height, width)]
    assert rows <= natural[0], "never enlarged beyond rounding to a patch"
    assert columns <= natural[1]
    if natural[0] * natural[1] <= max_patches:
        assert [rows, columns] == natural
    assert (columns, rows) == choose_grid(height, width, patch_size=patch_size, max_patches=max_patches)


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(4, 300))
def test_scaling_down_keeps_the_form(width: int, height: int, max_patches: int) -> None:
    """Each side is within one patch of what the exact aspect gives, and the limit is used as far as that allows."""
    rows, columns = choose_grid(width, height, patch_size=1, max_patches=max_patches)
    if width * height > max_patches and rows > 1 and columns > 1:
        exact_rows = (max_patches * height / width) ** 0.5
        exact_columns = (max_patches * width / height) ** 0.5
        assert exact_rows - 1 < rows <= exact_rows + 1e-9
        assert exact_columns - 1 < columns <= exact_columns + 1e-9
