"""Has the contract of TensorRT-LLM's cache: keeps copies of tensors, forgets the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch


class TensorLRUCache:
    def __init__(self, max_bytes: int, **named: Any) -> None:
        self._max_bytes = max_bytes
        self._items: OrderedDict[Any, torch.Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Any) -> torch.Tensor | None:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: Any, value: torch.Tensor) -> bool:
        if value.nbytes > self._max_bytes:
            return False
        self._items[key] = value.detach().clone()
        while sum(each.nbytes for each in self._items.values()) > self._max_bytes:
            self._items.popitem(last=False)
        return True
