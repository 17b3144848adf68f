"""Collects the results of one step; each tensor of its answer is one payload frame: C order, little-endian."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from mmcached.shm.store.tensor_bytes import to_bytes
from mmcached.wire.messages.engine import ItemEmbedding, ItemSaved, RequestSavedRows, RowsMissing, Sampled
from mmcached.wire.messages.parts import RequestRows, Tensor
from mmcached.wire.messages.worker import RunChunk
from mmcached.wire.sockets.frames import Frame

_DIGEST_BYTES = 16


@dataclass(slots=True)
class StepResult:
    """Results of a running step; dropped as a whole if it fails.

    Attributes:
        used: encoder outputs that the step made or emitted, in the plan's order.
        frames: payload of the answer, by the numbers in `embeddings` and `rows`.
        saved, saved_rows: items and rows that are saved in the store instead.
        large_rows: rows that may be saved: chunk, key, first position, rows.
    """

    used: list[torch.Tensor] = field(default_factory=list)
    embeddings: list[ItemEmbedding] = field(default_factory=list)
    saved: list[ItemSaved] = field(default_factory=list)
    saved_rows: list[RequestSavedRows] = field(default_factory=list)
    large_rows: list[tuple[RunChunk, str, int, torch.Tensor]] = field(default_factory=list)
    sampled: list[Sampled] = field(default_factory=list)
    rows: list[RequestRows] = field(default_factory=list)
    missing: list[RowsMissing] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)

    def add_frame(self, tensor: torch.Tensor) -> Tensor:
        (dtype, shape), data = to_bytes(tensor.cpu())
        self.frames.append(data.tobytes())
        return Tensor(len(self.frames) - 1, dtype, shape)

    def digest(self, outputs: Iterable[torch.Tensor]) -> bytes:
        """Return 16 bytes that cover all results of the step; equal on every rank.

        `outputs` are `(num_tokens, width)`, the rows of all chunks for each key, whether returned or not.
        """
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for sampled in self.sampled:
            digest.update(struct.pack("<QQ", sampled.request_id, sampled.token_id))
        for tensor in (*outputs, *self.used):
            _, data = to_bytes(tensor.cpu())
            digest.update(struct.pack("<Q", data.nbytes))
            digest.update(data.data)
        return digest.digest()
