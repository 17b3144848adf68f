"""Keeps one engine's embeddings in the store: one tensor each, read onto the engine's device, saved in the background.

    get, open ──> record? ──of a form that the model takes──> a tensor on the device
                    └──of another form: it is dropped for all processes, and a miss
    note_miss ──> the engine encodes; the time until the first `save` is what the saved embeddings cost
    save ──> the device begins a copy ──> saver's thread: the copy has ended ──> record

A record has two dimensions, (rows, width), as SGLang reads it. Only the engine's thread calls; a saved tensor must not
change afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from mmcached.client import Client, Hit
from mmcached.client.device.devices import Device
from mmcached.client.saver import Saver
from mmcached.integrations.encoding_time import EncodingTime
from mmcached.integrations.record_form import PartForm

TENSOR = "embedding"
TOGETHER_S = 0.005
"""The `delay_s` of the saver: until then a host has saved all that it has encoded together, and each has its share."""


class SharedEmbeddings:
    """Reads, saves and drops embeddings by their keys.

    Args:
        device: Device of the returned embeddings.
        saver: Puts the saved embeddings, `TOGETHER_S` later.
        forms: Forms of the model's embeddings, of any number of rows. Forms of saved embeddings are added.
        is_writer: Whether this process saves and drops; else another rank does it.
    """

    def __init__(
        self, client: Client, saver: Saver, device: Device, forms: Iterable[PartForm], *, is_writer: bool = True
    ) -> None:
        self._client = client
        self._saver = saver
        self._device = device
        self._forms = set(forms)
        self._is_writer = is_writer
        self._encoding: EncodingTime | None = None

    def get(self, key: str) -> torch.Tensor | None:
        """Return a copy of a key's embedding on the device, ready for work queued on the current stream; or None."""
        return self._own(self._client.get(key, view=self._device.reads_in_place), key)

    def open(self, token: str, key: str | None) -> torch.Tensor | None:
        """Return the same of a record that another process has found, by the token of its hit.

        Args:
            key: The record's key; None if this process does not know it, and so does not drop it.
        """
        return self._own(self._client.open(token, view=self._device.reads_in_place, counts=False), key)

    def note_miss(self) -> None:
        """Note that the engine encodes from now on. After several misses it encodes their items together."""
        watch = self._device.stopwatch() if self._is_writer else None
        self._encoding = None if watch is None else EncodingTime(watch)

    def save(self, key: str, embedding: torch.Tensor) -> bool:
        """Save an embedding, computed on any stream; return whether it was accepted.

        Args:
            embedding: `(…, width)`; with more than two dimensions it is saved as (rows, width).
        """
        if embedding.dim() < 2:
            return False
        embedding = embedding.reshape(-1, embedding.shape[-1])
        self._forms.add(_form_of(embedding))
        if not self._is_writer:
            return False
        num_rows, cost_s = len(embedding), None
        if self._encoding is not None:
            self._encoding.add(num_rows)
            cost_s = self._encoding.share(num_rows)
        wait = self._device.begin_copy([embedding])
        return self._saver.save(key, embedding.nbytes, lambda: {TENSOR: wait()[0]}, cost_s=cost_s)

    def drop(self, key: str) -> None:
        if self._is_writer:
            self._client.drop(key)

    def _own(self, hit: Hit | None, key: str | None) -> torch.Tensor | None:
        if hit is None:
            return None
        with hit:
            found = hit.record.get(TENSOR)
            if isinstance(found, torch.Tensor) and self._fits(found):
                (own,) = self._device.load([found])
                return own
        if key is not None:
            self.drop(key)
        return None

    def _fits(self, found: torch.Tensor) -> bool:
        if found.dim() != 2:
            return False
        form = _form_of(found)
        return form in self._forms and form.check(found) is None


def _form_of(embedding: torch.Tensor) -> PartForm:
    return PartForm((embedding.shape[1],), embedding.dtype, None)
