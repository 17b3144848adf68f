"""Places of items in a prompt: the tokens that replace a marker (P0 only), and the features that P0 sends to P1.

    prompt      7 12 IMG 9          one marker per image
    update      IMG -> 3 x IMG      P0 keeps it beside the item
    expanded    7 12 IMG IMG IMG 9  placeholders at PlaceholderRange(offset=2, length=3)

Knows nothing of text or tokenisers.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.compat.multimodal.items import MultiModalKwargsItem
from mmcached.wire.handle import Handle


@dataclass(frozen=True, slots=True)
class ResolvedPromptUpdate:
    """Replace the item's marker, the token `target`, by `length` tokens `placeholder`: one for each embedding."""

    modality: str
    target: int
    placeholder: int
    length: int

    @property
    def content(self) -> list[int]:
        return [self.placeholder] * self.length


@dataclass(frozen=True, slots=True)
class PlaceholderRange:
    """Placeholder tokens `[offset, offset + length)` of an expanded prompt."""

    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class ShmItem:
    """Item in the ring. The handle gives no right to read: a receiver takes a lease."""

    handle: Handle


@dataclass(slots=True)
class MultiModalFeatureSpec:
    """One item of a request, as the receiver gets it.

    Attributes:
        data: The item, its place in a ring, or None if the receiver has it; a receiver cache replaces it by the item.
        identifier: Key of the encoder's output; differs from `mm_hash` when an adapter changes the encoder.
        mm_hash: Key of the processed item; None if it equals the identifier.
    """

    data: MultiModalKwargsItem | ShmItem | None
    modality: str
    identifier: str
    mm_position: PlaceholderRange
    mm_hash: str | None = None

    @property
    def cache_key(self) -> str:
        """The key of the processed item in caches."""
        return self.mm_hash or self.identifier
