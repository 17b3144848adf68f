"""The encoder's budgets in bytes: rows x width x itemsize. A mirror: what is decided is decided in rows.

A row is what the workers keep of one embedding. Its width counts the numbers of all tensors of an output, so it may be
more than the language model's: an encoder that also hands up its inner layers makes rows several times as wide.

    declared   `service_embedding_row`: what the reference encoder returns, `(n, hidden_size)` int32
    measured   `EmbeddingRow.measured`: an output's rows and bytes, as `WorkerStats.encoder_bytes` counts them
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.engine.encoder_budget import EncoderBudget
from mmcached.engine.encoder_cache_book import EncoderCacheBook
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvariantError


@dataclass(frozen=True, slots=True)
class EmbeddingRow:
    """What one embedding takes in a worker's encoder cache: `width` numbers of `itemsize` bytes.

    >>> EmbeddingRow(width=1_024, itemsize=2).nbytes
    2048
    >>> EmbeddingRow.measured(num_embeds=10, nbytes=81_920, itemsize=2)
    EmbeddingRow(width=4096, itemsize=2)
    """

    width: int
    itemsize: int

    @property
    def nbytes(self) -> int:
        return self.width * self.itemsize

    @classmethod
    def measured(cls, *, num_embeds: int, nbytes: int, itemsize: int) -> EmbeddingRow:
        """Return the row of an output of `num_embeds` embeddings that takes `nbytes` in all.

        Raises:
            InvariantError: that is no whole number of items for each; the rows are not alike.
        """
        if num_embeds < 1 or nbytes % (num_embeds * itemsize):
            raise InvariantError(f"{nbytes} bytes are not {num_embeds} equal rows of {itemsize}-byte numbers")
        return cls(nbytes // (num_embeds * itemsize), itemsize)


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


def service_embedding_row(config: ServiceConfig) -> EmbeddingRow:
    """Return the row that the reference encoder of a service makes."""
    return EmbeddingRow(config.model.hidden_size, itemsize=4)
