"""Statistics of the seconds that hits of the store have saved, by kind of record and by modality."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from mmcached.wire.figures import Metric, Of, StatsRecord

NO_MODALITY = "other"
"""The modality of records that say none, such as a client's own."""


def _seconds(kind: str, modality: str = "{modality}") -> Metric:
    return Metric("saved_seconds", scale=1e-6, kind=kind, modality=modality)


class SavedOfModality(StatsRecord, frozen=True):
    """Microseconds saved by hits of one modality: of encoder outputs, and of processed or decoded items."""

    encoder_us: Annotated[int, _seconds("encoder")] = 0
    processor_us: Annotated[int, _seconds("processor")] = 0


class SavedStats(StatsRecord, frozen=True):
    """Microseconds saved by hits; `other` has encoder outputs and items whose modality is unknown.

    Attributes:
        other_us: Saved by hits of other records.
    """

    image: Annotated[SavedOfModality, Of("image")] = SavedOfModality()
    video: Annotated[SavedOfModality, Of("video")] = SavedOfModality()
    audio: Annotated[SavedOfModality, Of("audio")] = SavedOfModality()
    other: Annotated[SavedOfModality, Of(NO_MODALITY)] = SavedOfModality()
    other_us: Annotated[int, _seconds("other", NO_MODALITY)] = 0

    @property
    def encoder_us(self) -> int:
        return sum(each.encoder_us for each in self.by_modality.values())

    @property
    def processor_us(self) -> int:
        return sum(each.processor_us for each in self.by_modality.values())

    @property
    def by_modality(self) -> Mapping[str, SavedOfModality]:
        return {"image": self.image, "video": self.video, "audio": self.audio, NO_MODALITY: self.other}
