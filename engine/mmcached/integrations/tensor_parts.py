"""Takes apart tensors that a quantiser has packed, so that their bytes can be read."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def plain_parts(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the plain tensors that a tensor consists of: several where a quantiser packs it."""
    if type(value) is torch.Tensor or not hasattr(value, "__tensor_flatten__"):
        yield value
    else:
        names, _ = value.__tensor_flatten__()
        for name in names:
            yield from plain_parts(getattr(value, name))
