"""Keeps the digest of each weight that vLLM packs for a CPU, because a packed weight cannot be read.

On a CPU vLLM hands the weights of linear layers to oneDNN or to kernels of its own, and leaves an empty parameter.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from blake3 import blake3

_DIGEST = "_mmcached_packed"


def watch_packing(layers: Any) -> None:
    """Wrap vLLM's function that packs a linear layer; a second call does nothing.

    Args:
        layers: vLLM's module `model_executor.layers.utils`.
    """
    pack = getattr(layers, "dispatch_cpu_unquantized_gemm", None)
    if pack is None or hasattr(pack, _DIGEST):
        return

    @functools.wraps(pack)
    def dispatch_cpu_unquantized_gemm(layer: torch.nn.Module, *values: Any, **named: Any) -> Any:
        weight: Any = layer.weight
        content = None if weight.is_meta or weight.numel() == 0 else blake3(max_threads=blake3.AUTO)
        if content is not None:
            content.update(f"{weight.dtype} {list(weight.shape)}\n".encode())
            content.update(weight.data.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().data)
        result = pack(layer, *values, **named)
        vars(layer)[_DIGEST] = None if content is None else content.hexdigest()
        return result

    setattr(dispatch_cpu_unquantized_gemm, _DIGEST, True)
    layers.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def packed_digest(layer: torch.nn.Module) -> str | None:
    """Return the digest of the weight that was packed last in a layer; None if there is none."""
    found: str | None = vars(layer).get(_DIGEST)
    return found
