"""Counts items by modality: those that requests needed, and those that were processed. The cache has the totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from mmcached.gateway.processing.media import Medium
from mmcached.wire.stats import ItemsByModality, ItemsOfModality
from mmcached.wire.vocabulary import Modality


class ItemCounts:
    """Counts since the start of the frontend."""

    def __init__(self) -> None:
        self._queries: Counter[Modality] = Counter()
        self._hits: Counter[Modality] = Counter()
        self._processed: Counter[Modality] = Counter()

    @property
    def num_processed(self) -> int:
        """Processed items of all modalities."""
        return self._processed.total()

    def sent(self, media: Sequence[Medium], missing: Container[str], *, but: Container[str] = ()) -> None:
        """Count the items of a request that was sent.

        Args:
            missing: Keys of the items that the cache did not have.
            but: Keys of items that do not count.
        """
        modalities = {key: medium.modality for medium in media for key in medium.keys if key not in but}
        for key, modality in modalities.items():
            self._queries[modality] += 1
            self._hits[modality] += key not in missing

    def processed(self, modality: Modality, num_items: int) -> None:
        """Count items that a thread has made."""
        self._processed[modality] += num_items

    def by_modality(self) -> ItemsByModality:
        """Return the figures by modality."""
        return ItemsByModality(**{modality: self._of(modality) for modality in self._queries | self._processed})

    def _of(self, modality: Modality) -> ItemsOfModality:
        return ItemsOfModality(
            queries=self._queries[modality], hits=self._hits[modality], processed=self._processed[modality]
        )
