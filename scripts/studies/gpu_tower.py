"""A vision tower of random weights, as large as SigLIP's "so400m": the work that a hit saves.

27 layers, 1,152 wide, 16 heads, patches of 14 × 14 pixels; one picture at a time, any number of patches.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

LAYERS, WIDTH, HEADS, HIDDEN, PATCH = 27, 1152, 16, 4304, 14


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm_1(rows)).view(len(rows), 3, HEADS, -1).permute(1, 2, 0, 3)
        mixed = scaled_dot_product_attention(query[None], key[None], value[None])[0]
        rows = rows + self.out(mixed.transpose(0, 1).reshape(len(rows), WIDTH))
        made: torch.Tensor = rows + self.down(gelu(self.up(self.norm_2(rows)), approximate="tanh"))
        return made


class Tower(nn.Module):
    """Embeds patches `(n, 3 * 14 * 14)` as rows `(n, 1152)`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3 * PATCH**2, WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(LAYERS))

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self.embed(patches)
        for layer in self.layers:
            rows = layer(rows)
        return rows


def num_patches(pixels: int) -> int:
    return pixels // PATCH**2
