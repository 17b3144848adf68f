from __future__ import annotations

import pytest

from mmcached.frontend.processing.item_processor import Processing
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import EmptyImage, ImageTooLarge, InvalidRequest
from tests.frontend.fake_peers import png

IMAGE = png(1)


def test_keys_of_two_algorithms_never_meet() -> None:
    keys = {
        (processing.key(IMAGE, ""), processing.key_of_id("cat", "", index=0))
        for processing in map(Processing, (ServiceConfig(), ServiceConfig(mm_hasher_algorithm="sha256")))
    }
    assert len({key for pair in keys for key in pair}) == 4
    assert {len(key) for pair in keys for key in pair} == {64}


def test_a_key_says_the_tenant_and_the_processor() -> None:
    changed = ServiceConfig(model=ServiceConfig().model.__class__(patch_size=16))
    keys = {Processing(config).key(IMAGE, tenant) for config in (ServiceConfig(), changed) for tenant in ("", "a")}
    assert len(keys) == 4


def test_what_needs_no_look_into_the_file_is_refused_by_its_index() -> None:
    processing = Processing(ServiceConfig(max_image_bytes=100))
    processing.check([b"x" * 100, b""], [None, "cat"])
    for images, ids, expected, field in (
        ([b"x", b""], [None, None], EmptyImage, "images[1]"),
        ([b"x", b"x" * 101], [None, "cat"], ImageTooLarge, "images[1]"),
        ([b"x"], [], InvalidRequest, "image_ids"),
    ):
        with pytest.raises(expected) as caught:
            processing.check(images, ids)
        assert caught.value.details["field"] == field
    for wrong in ("", "x" * 257):
        with pytest.raises(InvalidRequest) as caught:
            processing.key_of_id(wrong, "", index=3)
        assert caught.value.details["field"] == "image_ids[3]"
