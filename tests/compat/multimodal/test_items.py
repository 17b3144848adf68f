"""Items and their records: the form in which they travel, through the real codec."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest

from mmcached.cache import (
    MultiModalBatchedField,
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    MultiModalKwargsItems,
    ResolvedPromptUpdate,
)
from mmcached.compat.multimodal.features import PlaceholderRange
from mmcached.compat.multimodal.nested import nested_equal
from mmcached.shm.store import codec
from mmcached.wire.errors import RemoteProtocolError


def an_item(value: int = 0) -> MultiModalKwargsItem:
    return MultiModalKwargsItem.from_record(
        {
            "pixel_values": np.full((3, 12), value, dtype=np.uint8),
            "grid": np.array([1, 3]),
            "nested": [np.zeros((2, 0), np.float32), [np.array(1.5, np.float32)], {"deep": np.ones(2)}],
            "scalars": [1, 2.5, True, "text", b"bytes", None],
        }
    )


def test_record_round_trip() -> None:
    item = an_item()
    record = item.to_record()
    assert type(record) is dict
    assert record["pixel_values"] is item["pixel_values"].data, "arrays are shared, not copied"
    assert MultiModalKwargsItem.from_record(record) == item


def test_record_survives_the_codec() -> None:
    """What the sender encodes is what the receiver decodes, field by field."""
    item = an_item(7)
    encoded = codec.encode(item.to_record())
    buffer = np.zeros(encoded.nbytes, np.uint8)
    encoded.write_into(buffer)
    assert MultiModalKwargsItem.from_record(codec.decode(buffer, tensors="numpy")) == item


def test_tuples_and_other_mappings_become_plain_in_the_record() -> None:
    item = MultiModalKwargsItem.from_record({"data": ((1, 2), MappingProxyType({"a": (np.ones(2),)}))})
    record = item.to_record()
    assert nested_equal(record, {"data": [[1, 2], {"a": [np.ones(2)]}]})
    assert type(record["data"]) is list
    codec.encode(record)


def test_items_compare_by_content() -> None:
    assert an_item(1) == an_item(1)
    assert an_item(1) != an_item(2)
    assert an_item(1) != MultiModalKwargsItem()


@pytest.mark.parametrize("record", [None, [1, 2], "text", {1: np.zeros(2)}])
def test_what_is_no_record_is_refused(record: object) -> None:
    with pytest.raises(RemoteProtocolError):
        MultiModalKwargsItem.from_record(record)  # type: ignore[arg-type]


def test_batched_field_splits_and_joins() -> None:
    field = MultiModalBatchedField()
    batch = [np.zeros((2, 3)), np.ones((4, 3))]
    elems = field.build_elems(batch)
    assert elems == [MultiModalFieldElem(data, field) for data in batch]
    joined = field.reduce_data(elems)
    assert all(a is b for a, b in zip(joined, batch, strict=True))


def test_items_by_modality() -> None:
    items = MultiModalKwargsItems({"image": [an_item(1), an_item(2)]})
    data = items.get_data()
    assert [record["pixel_values"][0, 0] for record in data["image"]] == [1, 2]  # type: ignore[index,call-overload]


def test_cache_key_is_the_hash_or_the_identifier() -> None:
    feature = MultiModalFeatureSpec(an_item(), "image", "adapter:abc", PlaceholderRange(1, 3), mm_hash="abc")
    assert feature.cache_key == "abc"
    feature.mm_hash = None
    assert feature.cache_key == "adapter:abc"


def test_prompt_update_content() -> None:
    assert ResolvedPromptUpdate("image", target=9, placeholder=8, length=3).content == [8, 8, 8]
