"""Image ids of both clients: what travels, what is refused before anything does, and the one miss that callers see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmcached.client.image_files import read_images
from mmcached.wire.errors import CacheMiss, EmptyImage, InvalidRequest, error_to_wire
from mmcached.wire.messages.client import Encoded, Failed, Generated, ToClient
from mmcached.wire.messages.frontend import Encode, FromClient, Generate
from tests.client.blocking import CLIENTS
from tests.client.fake_service import fake_service


def answer(message: FromClient) -> list[ToClient]:
    if isinstance(message, Generate):
        return [Generated(message.request_id, [1], "length", 1, 0)]
    return [Encoded(message.request_id, [])] if isinstance(message, Encode) else []


def miss(message: FromClient) -> list[ToClient]:
    if not isinstance(message, Generate | Encode):
        return []
    return [Failed(message.request_id, error_to_wire(CacheMiss([each for each in message.image_ids if each])))]


@pytest.fixture(params=CLIENTS)
def make(request: pytest.FixtureRequest) -> Any:
    return CLIENTS[request.param]


def test_ids_travel_with_the_request(make: Any, run_dir: Path) -> None:
    longest = "é" * 128
    with fake_service(run_dir, answer) as received, make(run_dir) as client:
        client.generate("<image><image>", [b"file", None], image_ids=[None, longest])
        client.encode([b"file"], image_ids=["a"])
        client.generate("<image>", [b"file"])
        asked = [message for message in received if isinstance(message, Generate | Encode)]
    assert [message.image_ids for message in asked] == [[None, longest], ["a"], []]


@pytest.mark.parametrize(
    ("images", "ids", "field"),
    [
        ([b"x"], ["a", "b"], "image_ids"),
        ([b"x"], "a", "image_ids"),
        ([b"x"], "", "image_ids"),
        ([], ["a"], "image_ids"),
        ([b"x", b"y"], [None, ""], "image_ids[1]"),
        ([b"x"], ["é" * 129], "image_ids[0]"),
        ([b"x"], ["\ud800"], "image_ids[0]"),
        ([b"x"], [7], "image_ids[0]"),
        ([None], [], "images[0]"),
        ([b"x", None], ["a", None], "images[1]"),
        ([b"", b"x"], ["a", None], "images[0]"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(
    make: Any, run_dir: Path, images: Any, ids: Any, field: str
) -> None:
    with fake_service(run_dir, answer) as received, make(run_dir) as client:
        for verb in (client.encode, lambda *images, **named: client.generate("<image>", *images, **named)):
            with pytest.raises(InvalidRequest) as caught:
                verb(images, image_ids=ids)
            assert caught.value.details["field"] == field
        assert not [message for message in received if isinstance(message, Generate | Encode)]


def test_a_miss_names_the_ids(make: Any, run_dir: Path) -> None:
    with fake_service(run_dir, miss), make(run_dir) as client:
        for verb in (client.encode, lambda images, **named: client.generate("<image>", images, **named)):
            with pytest.raises(CacheMiss) as caught:
                verb([None], image_ids=["cat"])
            assert caught.value.mm_hashes == ["cat"]
            assert caught.value.retryable


def test_an_empty_file_never_passes_for_an_id_alone(tmp_path: Path) -> None:
    empty = tmp_path / "empty.png"
    empty.touch()
    assert read_images([None, empty], ["a", None]) == [b"", b""]
    with pytest.raises(EmptyImage, match=r"images\[1\]"):
        read_images([None, empty], ["a", "b"])
