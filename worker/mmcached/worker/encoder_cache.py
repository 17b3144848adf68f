"""Encoder cache of a worker: content key -> named tensors.

The engine decides about budgets and eviction, and puts the weights version into the key; this cache drops the keys that
the engine freed.

Invariant: every tensor owns exactly its own bytes. A view would keep its base alive: the batch it was encoded in, or a
segment whose lease has been returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from mmcached.wire.errors import InvariantError


class EncoderCache:
    """Dictionary of encoder outputs that copies its values and counts their bytes."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, torch.Tensor]] = {}
        self._nbytes = 0

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def __len__(self) -> int:
        return len(self._records)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def keys(self) -> list[str]:
        return list(self._records)

    def put(self, key: str, record: Mapping[str, torch.Tensor]) -> None:
        """Store copies of the tensors of `record`, on their devices; replaces a record of the same key."""
        owned = {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in record.items()}
        self.drop([key])
        self._records[key] = owned
        self._nbytes += _nbytes(owned)

    def get(self, key: str) -> Mapping[str, torch.Tensor]:
        """Return the record itself, which callers must not write to; raises `InvariantError` if it is missing."""
        try:
            return self._records[key]
        except KeyError:
            raise InvariantError(f"encoder output {key!r} is not held by this worker", key=key) from None

    def drop(self, keys: Iterable[str]) -> int:
        dropped = 0
        for key in keys:
            record = self._records.pop(key, None)
            if record is not None:
                self._nbytes -= _nbytes(record)
                dropped += 1
        return dropped

    def clear(self) -> None:
        self._records.clear()
        self._nbytes = 0

    def check_integrity(self) -> None:
        counted = sum(_nbytes(record) for record in self._records.values())
        if counted != self._nbytes:
            raise InvariantError(f"{counted} bytes are held, {self._nbytes} are counted")
        for key, record in self._records.items():
            for name, tensor in record.items():
                if tensor.untyped_storage().nbytes() != tensor.nbytes:
                    raise InvariantError(f"{name!r} of {key!r} is a view into a larger storage", key=key)


def _nbytes(record: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in record.values())
