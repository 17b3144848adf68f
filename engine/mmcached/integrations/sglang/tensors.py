"""Keeps embeddings of one engine in the store: one tensor each, read onto the engine's device, saved behind its back.

    get ──> record? ──> a tensor on the device
    save ──> the device begins a copy ──> saver's thread: the copy has ended ──> record

One thread calls, the engine's; what it saves must not change afterwards.
"""

from __future__ import annotations

import torch

from mmcached.client import Client
from mmcached.client.device.devices import Device
from mmcached.client.saver import Saver

TENSOR = "embedding"


class Tensors:
    """Reads, saves and drops embeddings by their keys.

    Args:
        device: where embeddings are wanted.
        saver: puts what is saved.
    """

    def __init__(self, client: Client, saver: Saver, device: Device) -> None:
        self._client = client
        self._saver = saver
        self._device = device

    def get(self, key: str) -> torch.Tensor | None:
        """Return the embedding of a key, owned and on the device, for what is queued on the current stream; or None."""
        hit = self._client.get(key, view=self._device.reads_in_place)
        if hit is None:
            return None
        with hit:
            found = hit.record.get(TENSOR)
            if not isinstance(found, torch.Tensor) or found.dim() < 2:
                return None
            (own,) = self._device.load([found])
            return own

    def save(self, key: str, embedding: torch.Tensor) -> bool:
        """Have an embedding saved, on whatever stream it is being computed; return whether it was taken."""
        wait = self._device.begin_copy([embedding])
        return self._saver.save(key, embedding.nbytes, lambda: {TENSOR: wait()[0]})

    def drop(self, key: str) -> None:
        """Forget the embedding of a key, for all: it is wrong."""
        self._client.drop(key)
