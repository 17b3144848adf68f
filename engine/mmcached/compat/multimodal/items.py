"""Multimodal items: all data that the model needs of one image or other input.

    MultiModalKwargsItems   modality -> [MultiModalKwargsItem, …]
    MultiModalKwargsItem    field name -> MultiModalFieldElem(data, field)           one image
    record                  field name -> data                                       the same, as it is sent

`mmcached.shm.store.codec` encodes records. A record does not name the kind of a field: all fields are batched.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcached.compat.multimodal.nested import NestedTensors, nested_equal, plain
from mmcached.wire.errors import RemoteProtocolError


@dataclass(frozen=True, slots=True)
class MultiModalBatchedField:
    """Field whose data of several items form a batch: element `i` of the batch belongs to item `i`."""

    def build_elems(self, batch: Sequence[NestedTensors]) -> list[MultiModalFieldElem]:
        return [MultiModalFieldElem(data, self) for data in batch]

    def reduce_data(self, elems: Sequence[MultiModalFieldElem]) -> list[NestedTensors]:
        """Join elements into a batch, in order. Items may differ in shape, so this stacks nothing."""
        return [elem.data for elem in elems]


@dataclass(frozen=True, slots=True, eq=False)
class MultiModalFieldElem:
    """One field of one item: its data, and its kind of batching."""

    data: NestedTensors
    field: MultiModalBatchedField = MultiModalBatchedField()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MultiModalFieldElem):
            return NotImplemented
        return self.field == other.field and nested_equal(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]  # like the arrays in it


class MultiModalKwargsItem(UserDict[str, MultiModalFieldElem]):
    """Field name -> element: all data that the model needs for one item."""

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> MultiModalKwargsItem:
        """Rebuild an item from `to_record`'s result; RemoteProtocolError if the record is not a mapping of names."""
        if not isinstance(record, Mapping) or not all(isinstance(name, str) for name in record):
            raise RemoteProtocolError("an item's record maps field names to data", "record")
        return cls({name: MultiModalFieldElem(data) for name, data in record.items()})

    def to_record(self) -> dict[str, NestedTensors]:
        """Return a plain dict of names -> data; arrays are shared, not copied."""
        return {name: plain(elem.data) for name, elem in self.data.items()}

    get_data = to_record


class MultiModalKwargsItems(UserDict[str, Sequence[MultiModalKwargsItem]]):
    """Modality -> items, in the order of the prompt."""

    def get_data(self) -> dict[str, list[dict[str, NestedTensors]]]:
        """Return the same as plain lists and dicts; arrays are shared, not copied."""
        return {modality: [item.to_record() for item in items] for modality, items in self.data.items()}
