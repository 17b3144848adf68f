"""Records to put, and whether what comes back is the same, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

NUMPY_DTYPES = [np.bool_, np.int8, np.uint16, np.int64, np.float16, np.float32, np.complex128]
TORCH_DTYPES = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float32, torch.int64, torch.bool]


def numbers(seed: int, nbytes: int = 4096) -> dict[str, Any]:
    """Return a record of one array and what belongs to it; equal seeds, equal records."""
    return {"x": np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8), "seed": seed}


def every_dtype() -> dict[str, Any]:
    """Return a nested record with a tensor of each dtype, odd shapes included."""
    generator = torch.Generator().manual_seed(7)
    raw = torch.randint(0, 2, (48,), generator=generator, dtype=torch.uint8)
    tensors = {str(dtype): raw.view(dtype) for dtype in TORCH_DTYPES}
    shapes = [torch.empty(0, 3), torch.tensor(1.5), torch.arange(24).reshape(2, 3, 4).transpose(0, 2)]
    return {"by_dtype": tensors, "shapes": shapes, "plain": [1, 2.5, "text", b"bytes", None, True]}


def is_equal(left: Any, right: Any) -> bool:
    """Return whether two records are the same; tensors by dtype, shape and bytes, whichever library made them."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(is_equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(is_equal, left, right))
    if isinstance(left, torch.Tensor | np.ndarray):
        return _described(left) == _described(right)
    return type(left) is type(right) and bool(left == right)


def _described(tensor: torch.Tensor | np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], bytes]:
    name = str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.contiguous()
        data = b"" if not tensor.numel() else bytes(tensor.reshape(-1).view(torch.uint8).numpy())
        return name, tuple(tensor.shape), data
    return name, tensor.shape, tensor.tobytes()
