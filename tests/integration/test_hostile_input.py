"""Whatever arrives, the sender gets a typed error, and the next request is answered."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
import zmq

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.errors import (
    CorruptImage,
    EmptyImage,
    ImageTooLarge,
    InvalidRequest,
    MmcachedError,
    error_from_wire,
)
from mmcached.wire.messages.client import Failed, ToClient
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import encode_frames
from mmcached.wire.version import PROTOCOL_VERSION
from tests.doubles.dealer import Dealer
from tests.gateway.pictures import png_header
from tests.integration.processes import DEADLINE_S
from tests.integration.workloads import photo


@pytest.fixture
def service(lasting_service: ChildService) -> Path:
    return lasting_service.run_dir


def assert_serves(run_dir: Path) -> None:
    with Client(run_dir) as client:
        generation = client.generate("still there? <image>", [photo(0)], max_tokens=2)
    assert len(generation.tokens) >= 1


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", EmptyImage),
        (b"not an image at all", CorruptImage),
        (photo(0)[:200], CorruptImage),
        (png_header(40_000, 40_000), ImageTooLarge),
        (png_header(9_000, 9_000), ImageTooLarge),  # Pillow alone would only warn
    ],
    ids=["0 bytes", "no image", "truncated", "40000 x 40000", "81 Mpx"],
)
def test_bad_image_is_a_typed_error_that_names_it(service: Path, data: bytes, error: type[InvalidRequest]) -> None:
    with Client(service) as client:
        with pytest.raises(error) as caught:
            client.generate("two: <image> <image>", [photo(0), data], max_tokens=2)
        assert caught.value.details["field"] == "images[1]"
        with pytest.raises(error):
            client.encode([data])
        # The same connection goes on.
        assert client.generate("<image>", [photo(0)], max_tokens=2).tokens


@pytest.mark.parametrize(
    ("prompt", "images", "max_tokens", "field"),
    [
        ("one <image>", 0, 2, "prompt"),
        ("none", 1, 2, "prompt"),
        ("", 0, 2, "prompt"),
        ("x" * 9000, 0, 2, "prompt"),
        ([1, 2, 99_999], 0, 2, "prompt[2]"),
        ("x", 0, 8192, "prompt"),
        ("<image>" * 17, 17, 1, "images"),
    ],
)
def test_bad_request_names_field_value_and_limit(
    service: Path, prompt: str | list[int], images: int, max_tokens: int, field: str
) -> None:
    with Client(service) as client:
        with pytest.raises(InvalidRequest) as caught:
            client.generate(prompt, [photo(0)] * images, max_tokens)
        assert {"field", "value", "limit"} <= set(caught.value.details)
        assert caught.value.details["field"] == field
        assert client.generate("good", max_tokens=1).tokens


def raw_answer(run_dir: Path, frames: list[bytes]) -> MmcachedError:
    """Send frames as they are and return the error that comes back."""
    with Dealer[ToClient](RunDir(run_dir).client_address, ToClient) as dealer:
        dealer.socket.send_multipart(frames)
        message, _ = dealer.receive(DEADLINE_S)
    assert isinstance(message, Failed)
    return error_from_wire(message.error)


GOOD = [bytes(frame) for frame in encode_frames(Generate("0" * 32, 1, "hi", 2, None, 5.0))]


@pytest.mark.parametrize(
    ("frames", "field"),
    [
        ([b"\xc1\xff\x00random"], "frames"),
        ([GOOD[0], b"\xc1\xff\x00random"], None),
        ([GOOD[0], GOOD[1][:-3]], "body"),
        ([b"mmc" + bytes([PROTOCOL_VERSION + 1]), GOOD[1]], "version"),
        ([b"GET / HTTP/1.1\r\n", GOOD[1]], "version"),
        ([GOOD[0], msgspec.msgpack.encode(["Generate", "0" * 32, 1, "hi", -2, None, 5.0])], None),
        ([GOOD[0], msgspec.msgpack.encode(["NoSuchThing", 1])], None),
    ],
    ids=["one frame", "random bytes", "truncated", "future version", "other protocol", "out of range", "unknown tag"],
)
def test_bad_frames_get_a_protocol_error_and_change_nothing(
    service: Path, frames: list[bytes], field: str | None
) -> None:
    error = raw_answer(service, frames)
    assert error.code == "remote_protocol_error"
    if field is not None:
        assert error.details["field"] == field
    assert_serves(service)


def test_noise_on_both_sockets_is_survived(service: Path) -> None:
    """Neither an endless stream of nonsense from clients nor one from a would-be engine disturbs the others."""
    rng = random.Random(11)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    directory = RunDir(service)
    try:
        for address in (directory.client_address, directory.engine_address):
            with context.socket(zmq.DEALER) as socket:
                socket.setsockopt(zmq.LINGER, 2000)
                socket.connect(address)
                for _ in range(200):
                    socket.send_multipart([rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(1, 5))])
    finally:
        context.term()
    assert_serves(service)
