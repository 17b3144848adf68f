"""Keeps embeddings of one engine in the store: one tensor each, read onto the engine's device, saved behind its back.

    get ──> record? ──of a form that the model takes──> a tensor on the device
              └──of another: it is dropped for all, and a miss
    save ──> the device begins a copy ──> saver's thread: the copy has ended ──> record

A record has two dimensions, (rows, width), as SGLang reads it. One thread calls, the engine's; what it saves must not
change afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mmcached.client import Client
from mmcached.client.device.devices import Device
from mmcached.client.saver import Saver
from mmcached.integrations.record_form import PartForm

TENSOR = "embedding"


class Tensors:
    """Reads, saves and drops embeddings by their keys.

    Args:
        device: where embeddings are wanted.
        saver: puts what is saved.
        forms: of the model's embeddings, of any number of rows. What it saves is of a right form too.
    """

    def __init__(self, client: Client, saver: Saver, device: Device, forms: Iterable[PartForm]) -> None:
        self._client = client
        self._saver = saver
        self._device = device
        self._forms = set(forms)

    def get(self, key: str) -> torch.Tensor | None:
        """Return the embedding of a key, owned and on the device, for what is queued on the current stream; or None."""
        hit = self._client.get(key, view=self._device.reads_in_place)
        if hit is None:
            return None
        with hit:
            found = hit.record.get(TENSOR)
            if isinstance(found, torch.Tensor) and self._fits(found):
                (own,) = self._device.load([found])
                return own
        self.drop(key)
        return None

    def save(self, key: str, embedding: torch.Tensor) -> bool:
        """Have an embedding saved, on whatever stream it is being computed; return whether it was taken.

        Args:
            embedding: (…, width); of more than two dimensions it is saved as (rows, width).
        """
        if embedding.dim() < 2:
            return False
        embedding = embedding.reshape(-1, embedding.shape[-1])
        self._forms.add(_form_of(embedding))
        wait = self._device.begin_copy([embedding])
        return self._saver.save(key, embedding.nbytes, lambda: {TENSOR: wait()[0]})

    def drop(self, key: str) -> None:
        """Forget the embedding of a key, for all: it is wrong."""
        self._client.drop(key)

    def _fits(self, found: torch.Tensor) -> bool:
        if found.dim() != 2:
            return False
        form = _form_of(found)
        return form in self._forms and form.check(found) is None


def _form_of(embedding: torch.Tensor) -> PartForm:
    return PartForm((embedding.shape[1],), embedding.dtype, None)
