"""Frames that do not validate are typed errors, and nothing else happens."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.messages.client import Failed, ToClient, Welcome
from mmcached.wire.messages.frontend import ClientHello, FromClient, GetStats
from mmcached.wire.sockets.frames import decode_frames, encode_frames, make_decoder
from tests.house.drawing import examples
from tests.wire.examples import EXAMPLES, UNIONS

GOOD = [bytes(frame) for frame in encode_frames(GetStats(3))]


@pytest.mark.parametrize(
    ("frames", "field", "reason"),
    [
        ([], "frames", "0 frame"),
        (GOOD[:1], "frames", "1 frame"),
        ([b"", GOOD[1]], "version", "not an mmcached version"),
        ([b"mmc", GOOD[1]], "version", "not an mmcached version"),
        ([b"http", GOOD[1]], "version", "not an mmcached version"),
        ([b"mmc\x63", GOOD[1]], "version", "version 99"),
        ([GOOD[0], b""], "body", "not MessagePack"),
        ([GOOD[0], GOOD[1][:-1]], "body", "not MessagePack"),
        ([GOOD[0], GOOD[1] + b"\0"], "body", "not MessagePack"),
        ([GOOD[0], b"\xc1"], "body", "not MessagePack"),
    ],
)
def test_frames_that_are_no_message(frames: list[bytes], field: str, reason: str) -> None:
    with pytest.raises(RemoteProtocolError, match=reason) as caught:
        decode_frames(frames, make_decoder(FromClient))
    assert caught.value.details["field"] == field


def test_a_large_first_frame_is_not_copied() -> None:
    large = bytearray(32 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="not an mmcached version"):
            decode_frames([large, GOOD[1]], make_decoder(FromClient))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (["GetStats", -1], "$[1]"),
        (["GetStats", 2**63], "$[1]"),
        (["GetStats", "3"], "$[1]"),
        (["GetStats", True], "$[1]"),
        (["GetStats"], "$"),
        (["GetStats", 3, 4], "$"),
        (["Unknown", 3], "$[0]"),
        ({"type": "GetStats", "request_id": 3}, "$"),
        (["ClientHello", "short"], "$[1]"),
        (["ClientHello", "A" * 32], "$[1]"),
        (["Generate", "0" * 32, 1, ["x"], 1, None, 1.0], "$[3][0]"),
        (["Generate", "0" * 32, 1, "x", 0, None, 1.0], "$[4]"),
        (["Generate", "0" * 32, 1, "x", 1, 0, 1.0], "$[5]"),
        (["Generate", "0" * 32, 1, "x", 1, [[]], 1.0], "$[5][0]"),
        (["Generate", "0" * 32, 1, "x", 1, [["a"], -1], 1.0], "$[5][1]"),
        (["Generate", "0" * 32, 1, "x", 1, [["a"], 0, "some"], 1.0], "$[5][2]"),
        (["Generate", "0" * 32, 1, "x", 1, None, float("nan")], "$[6]"),
        (["Generate", "0" * 32, 1, "x", 1, None, 0.0], "$[6]"),
        (["Generate", "0" * 32, 1, "x", 1, None, 1.0, "t" * 257], "$[7]"),
    ],
)
def test_what_does_not_validate_is_named_by_its_path(message: Any, field: str) -> None:
    frames = [GOOD[0], msgspec.msgpack.encode(message)]
    with pytest.raises(RemoteProtocolError) as caught:
        decode_frames(frames, make_decoder(FromClient))
    assert caught.value.details["field"] == field


def test_a_message_for_another_receiver_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frames(encode_frames(ClientHello("0" * 32)), make_decoder(ToClient))


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdd\x00\x00\x00\x01", b"\xdf\x00\x00\x00\x01\xa1a"])
@pytest.mark.parametrize("union", UNIONS, ids=UNIONS.keys())
def test_endless_nesting_is_refused(union: str, opening: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_frames([GOOD[0], opening * 100_000], make_decoder(UNIONS[union]))


def test_endless_nesting_inside_a_field_is_refused() -> None:
    body = b"\x93\xa6Failed\x01\x94\xa1c\xa1m\xc2\x81\xa1a" + b"\x91" * 100_000
    with pytest.raises(RemoteProtocolError):
        decode_frames([GOOD[0], body], make_decoder(Failed | Welcome))


ANY_UNION = st.sampled_from(sorted(UNIONS))


@settings(max_examples=examples(300))
@given(ANY_UNION, st.lists(st.binary(max_size=40), max_size=3), st.booleans())
def test_random_bytes_give_a_typed_error(union: str, frames: list[bytes], has_version: bool) -> None:
    try:
        decode_frames([*GOOD[:has_version], *frames], make_decoder(UNIONS[union]))
    except RemoteProtocolError as error:
        assert error.code == "remote_protocol_error"  # noqa: PT017


@settings(max_examples=examples(300))
@given(
    st.sampled_from(EXAMPLES), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)
)
def test_mutated_messages_give_a_message_or_a_typed_error(
    example: tuple[str, Any], mutations: list[tuple[float, int]]
) -> None:
    union, message = example
    body = bytearray(encode_frames(message)[1])
    for place, value in mutations:
        body[int(place * len(body))] = value
    decoder = make_decoder(UNIONS[union])
    try:
        decoded, _ = decode_frames([GOOD[0], body], decoder)
    except RemoteProtocolError:
        return
    again, _ = decode_frames(encode_frames(decoded), decoder)
    assert again == decoded
