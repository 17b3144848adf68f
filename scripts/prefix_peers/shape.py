"""What is measured: rows as wide as a 30B model's hidden states, and room for half a gibibyte of them."""

from __future__ import annotations

import torch

BLOCK_SIZE = 16
HIDDEN_SIZE = 2_048
DTYPE = torch.bfloat16
ROW_BYTES = HIDDEN_SIZE * DTYPE.itemsize
BLOCK_BYTES = BLOCK_SIZE * ROW_BYTES

ROOM_BYTES = 512 << 20
NUM_BLOCKS = ROOM_BYTES // BLOCK_BYTES

PROMPT_TOKENS = 2 * BLOCK_SIZE
STEPS = BLOCK_SIZE
"""Decode steps of one sample: each request begins one block in them and completes one."""

PREFIX_REQUESTS = 64
PREFIX_TOKENS = 512

BUDGET_BYTES = 1 << 30
"""Of the caches whose memory is measured before their first use."""
