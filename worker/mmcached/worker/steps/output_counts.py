"""Counts encoded and loaded items by modality, and tiles, since the start of the worker."""

from __future__ import annotations

from collections import Counter

from mmcached.wire.engine_stats import EncodedByModality, EncodedOfModality
from mmcached.wire.messages.worker import EncodeItem
from mmcached.wire.vocabulary import Modality


class OutputCounts:
    def __init__(self) -> None:
        self._encoded: Counter[Modality] = Counter()
        self._loaded: Counter[Modality] = Counter()
        self._embeds_encoded: Counter[Modality] = Counter()
        self._embeds_loaded: Counter[Modality] = Counter()
        self.num_tiles_encoded = 0
        self.num_tiles_reused = 0

    @property
    def num_encoded(self) -> int:
        return self._encoded.total()

    @property
    def num_loaded(self) -> int:
        return self._loaded.total()

    @property
    def num_embeds_encoded(self) -> int:
        return self._embeds_encoded.total()

    def encoded(self, item: EncodeItem) -> None:
        self._encoded[item.modality] += 1
        self._embeds_encoded[item.modality] += item.num_embeds

    def loaded(self, item: EncodeItem) -> None:
        self._loaded[item.modality] += 1
        self._embeds_loaded[item.modality] += item.num_embeds

    def tiles(self, *, encoded: int, reused: int) -> None:
        """Count the tiles of one item; reused are those found, and those equal to another one of the item."""
        self.num_tiles_encoded += encoded
        self.num_tiles_reused += reused

    def by_modality(self) -> EncodedByModality:
        return EncodedByModality(**{modality: self._of(modality) for modality in self._encoded | self._loaded})

    def _of(self, modality: Modality) -> EncodedOfModality:
        return EncodedOfModality(
            encoded=self._encoded[modality],
            loaded=self._loaded[modality],
            embeds_encoded=self._embeds_encoded[modality],
            embeds_loaded=self._embeds_loaded[modality],
        )
