from __future__ import annotations

import pytest

from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import EmptyImage, ImageTooLarge, InvalidRequest
from tests.frontend.fake_peers import png

IMAGE = png(1)


def image(data: bytes, name: str | None = None) -> Medium:
    return Medium("image", data, "images[3]", name)


def test_keys_of_two_algorithms_never_meet() -> None:
    keys = {
        (processing.keys(image(IMAGE), "")[1], processing.key_of_name(image(b"", "cat"), ""))
        for processing in map(Processing, (ServiceConfig(), ServiceConfig(mm_hasher_algorithm="sha256")))
    }
    assert len({key for pair in keys for key in pair}) == 4
    assert {len(key) for pair in keys for key in pair} == {64}


def test_a_key_says_the_tenant_and_the_processor() -> None:
    changed = ServiceConfig(model=ServiceConfig().model.__class__(patch_size=16))
    keys = {
        Processing(config).keys(image(IMAGE), tenant)[1]
        for config in (ServiceConfig(), changed)
        for tenant in ("", "a")
    }
    assert len(keys) == 4


def test_what_needs_no_look_into_the_file_is_refused_by_its_index() -> None:
    processing = Processing(ServiceConfig(max_image_bytes=100))
    processing.check(image(b"x" * 100))
    processing.check(image(b"", "cat"))
    for wrong, expected in ((image(b""), EmptyImage), (image(b"x" * 101, "cat"), ImageTooLarge)):
        with pytest.raises(expected) as caught:
            processing.check(wrong)
        assert caught.value.details["field"] == "images[3]"
    for name in ("", "x" * 257):
        with pytest.raises(InvalidRequest) as refused:
            processing.key_of_name(image(b"", name), "")
        assert refused.value.details["field"] == "image_ids[3]"
