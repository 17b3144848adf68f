"""The encoder's budgets in bytes: rows x width x itemsize. A mirror: what is decided is decided in rows.

A row is what the workers keep of one embedding. Its width counts the numbers of all tensors of an output, so it may be
more than the language model's: an encoder that also hands up its inner layers makes rows several times as wide. So it
is measured: each worker says what it has kept of one (`WorkerAttached`).
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.engine.encoder.encoder_budget import EncoderBudget
from mmcached.engine.encoder.encoder_cache_book import EncoderCacheBook


@dataclass(frozen=True, slots=True)
class EmbeddingRow:
    """What one embedding takes in a worker's encoder cache: `width` numbers of `itemsize` bytes.

    >>> EmbeddingRow(width=1_024, itemsize=2).nbytes
    2048
    """

    width: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.width * self.itemsize


@dataclass(frozen=True, slots=True)
class EncoderBytes:
    """Budgets and books of an encoder in bytes.

    Attributes:
        compute_bytes: of what one step may compute.
        cache_bytes: of what is kept at most.
        used_bytes: of all entries.
        freeable_bytes: that fit if everything without reference is evicted.
    """

    compute_bytes: int
    cache_bytes: int
    used_bytes: int
    freeable_bytes: int

    @classmethod
    def of(cls, budget: EncoderBudget, book: EncoderCacheBook, row: EmbeddingRow) -> EncoderBytes:
        """Return what the budgets and the books of now are with rows like this."""
        return cls(
            compute_bytes=budget.compute_budget * row.nbytes,
            cache_bytes=book.cache_size * row.nbytes,
            used_bytes=(book.cache_size - book.num_free_slots) * row.nbytes,
            freeable_bytes=book.num_freeable_slots * row.nbytes,
        )
