"""Copies embeddings between records of the store and the host's buffers, given by address and size.

An embedding lies in one buffer or in several, one after the other; its record has the bytes without a shape. A record
of another size is a miss, and so is one whose bytes are not finite numbers of the model's dtype. Saved buffers are
copied before the call returns, because the host may reuse them then. Any thread may call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmcached.client import Client, Hit
from mmcached.client.saver import Saver
from mmcached.integrations.record_form import PartForm
from mmcached.shm.store.codec import Record

BYTES = "embedding"

Bytes = npt.NDArray[np.uint8]


class Buffers:
    """Reads and saves embeddings by their keys.

    Args:
        saver: Puts the copies in the background.
        dtype: Dtype of an embedding's numbers; None if it is unknown.
    """

    def __init__(self, client: Client, saver: Saver, dtype: torch.dtype | None = None) -> None:
        self._client = client
        self._saver = saver
        self._dtype = dtype

    def contains(self, keys: Sequence[str]) -> list[bool]:
        """Return which keys have a record; a hint. Records of other hosts are fetched, to be read next."""
        are_known = self._client.contains_many(keys)
        missing = [key for key, is_known in zip(keys, are_known, strict=True) if not is_known]
        brought = iter(self._client.get_many(missing, view=True, tensors="numpy") if missing else ())
        return [is_known or next(brought) is not None for is_known in are_known]

    def read(
        self, keys: Sequence[str], pointers: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
    ) -> list[bool]:
        """Fill the buffers (sizes in bytes) of each key that has a record of their size; return which were filled."""
        hits = self._client.get_many(keys, view=True)
        return [_fill(hit, to, lengths, self._dtype) for hit, to, lengths in zip(hits, pointers, sizes, strict=True)]

    def save(
        self, keys: Sequence[str], pointers: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
    ) -> list[bool]:
        """Save a copy of each key's buffers; return which have a record, or will if the service accepts it."""
        known = self._client.contains_many(keys)
        return [
            is_known or self._saver.save(key, sum(lengths), _record(_copy(source, lengths)))
            for is_known, key, source, lengths in zip(known, keys, pointers, sizes, strict=True)
        ]


def _fill(hit: Hit | None, pointers: Sequence[int], sizes: Sequence[int], dtype: torch.dtype | None) -> bool:
    if hit is None:
        return False
    with hit:
        data: Any = hit.record.get(BYTES)
        if PartForm((), torch.uint8, sum(sizes)).check(data) is not None or not data.is_contiguous():
            return False
        if dtype is not None and data.nbytes % dtype.itemsize == 0:
            numbers = data.view(dtype)
            if PartForm.of(numbers).check(numbers) is not None:
                return False
        at = data.data_ptr()
        for pointer, size in zip(pointers, sizes, strict=True):
            ctypes.memmove(pointer, at, size)
            at += size
    return True


def _copy(pointers: Sequence[int], sizes: Sequence[int]) -> Bytes:
    data = np.empty(sum(sizes), np.uint8)
    at = data.ctypes.data
    for pointer, size in zip(pointers, sizes, strict=True):
        ctypes.memmove(at, pointer, size)
        at += size
    return data


def _record(data: Bytes) -> Callable[[], Record]:
    return lambda: {BYTES: data}
