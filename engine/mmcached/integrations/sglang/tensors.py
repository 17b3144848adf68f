"""Keeps embeddings of one engine in the store: one tensor each, read onto the engine's device, saved behind its back.

    get ──> record? ──> a tensor on the device
    save ──> the computing stream so far ──event──> saver's thread: copy on a stream of its own ──> record

One thread calls, the engine's; what it saves must not change afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mmcached.client import Client
from mmcached.client.saver import Saver
from mmcached.shm.store.codec import Record

TENSOR = "embedding"


class Tensors:
    """Reads, saves and drops embeddings by their keys.

    Args:
        device: where embeddings are wanted.
        saver: puts what is saved.
    """

    def __init__(self, client: Client, saver: Saver, device: torch.device) -> None:
        self._client = client
        self._saver = saver
        self._device = device

    def get(self, key: str) -> torch.Tensor | None:
        """Return the embedding of a key, owned and on the device, or None."""
        is_far = self._device.type != "cpu"
        hit = self._client.get(key, view=is_far)
        if hit is None:
            return None
        with hit:
            found = hit.record.get(TENSOR)
            if not isinstance(found, torch.Tensor) or found.dim() < 2:
                return None
            return found.to(self._device)  # out of memory that is not pinned: it is there when the call returns

    def save(self, key: str, embedding: torch.Tensor) -> bool:
        """Have an embedding saved, on whatever stream it is being computed; return whether it was taken."""
        return self._saver.save(key, embedding.nbytes, _record(embedding.detach()))

    def drop(self, key: str) -> None:
        """Forget the embedding of a key, for all: it is wrong."""
        self._client.drop(key)


def _record(embedding: torch.Tensor) -> Callable[[], Record]:
    """Return what makes the record of an embedding in another thread."""
    if embedding.device.type == "cpu":
        return lambda: {TENSOR: embedding.contiguous()}
    device: Any = torch.get_device_module(embedding.device)
    is_computed = device.Event()
    is_computed.record()

    def copy() -> Record:
        stream = device.Stream(embedding.device)
        with device.stream(stream):
            stream.wait_event(is_computed)
            copied = embedding.to("cpu")
        stream.synchronize()  # the embedding's memory may be given to another tensor from here on
        return {TENSOR: copied.contiguous()}

    return copy
