"""ZMTP without a socket: what any cutting into pieces gives, and what exceeds a limit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.sockets.zmtp import (
    COMMAND,
    GREETING,
    LARGE_FRAME,
    MAPPED_BYTES,
    MORE,
    ROOM_BYTES,
    MessageReader,
    pack,
)
from tests.house.drawing import examples
from tests.wire.raw_peer import frame, head, ready

Message = list[bytes]
MIB = 1 << 20


def reader(*, max_frames: int = 8, max_bytes: int = 1 << 20) -> MessageReader:
    made = MessageReader(b"DEALER", max_frames=max_frames, max_bytes=max_bytes)
    made.feed(GREETING + ready())
    assert made.next_message() is None
    assert made.is_ready
    return made


def take_all(of: MessageReader) -> list[Message | str]:
    """Return the messages that are there, and for what was left out the field of its error."""
    found: list[Message | str] = []
    while True:
        try:
            message = of.next_message()
        except RemoteProtocolError as error:
            field = str(error.details["field"])
            found.append(field)
            if field == "zmtp":
                return found
            continue
        if message is None:
            if of.has_more:
                continue
            return found
        found.append([bytes(part) for part in message])


def give(to: MessageReader, data: bytes) -> list[Message | str]:
    """Give it bytes as a socket would: into the room it offers, or by feeding."""
    found = take_all(to)
    while data:
        room = to.room()
        if room is None:
            to.feed(data)
            data = b""
        else:
            num_bytes = min(len(room), len(data))
            room[:num_bytes] = data[:num_bytes]
            to.filled(num_bytes)
            data = data[num_bytes:]
        found += take_all(to)
    return found


SIZES = st.one_of(st.integers(0, 300), st.sampled_from([LARGE_FRAME - 1, LARGE_FRAME, LARGE_FRAME + 7]))
FRAMES = st.lists(
    st.builds(lambda size, fill: bytes([fill]) * size, SIZES, st.integers(0, 255)), min_size=1, max_size=5
)


@settings(max_examples=examples(40))
@given(st.lists(FRAMES, max_size=4), st.lists(st.integers(1, 40_000), min_size=1, max_size=8))
def test_what_is_packed_is_read_however_it_is_cut(messages: list[Message], cuts: list[int]) -> None:
    stream = b"".join(bytes(piece) for message in messages for piece in pack(message))
    of = MessageReader(b"DEALER", max_frames=8, max_bytes=1 << 20)
    data = GREETING + ready() + stream
    found: list[Message | str] = []
    at = turn = 0
    while at < len(data):
        found += give(of, data[at : at + cuts[turn % len(cuts)]])
        at += cuts[turn % len(cuts)]
        turn += 1
    assert found == messages
    assert not of.is_mid_message


@pytest.mark.parametrize(
    "too_much",
    [
        frame(b"x", more=True) * 8 + frame(b"x"),
        frame(b"y" * 600, more=True) + frame(b"z" * 600),
        frame(b"y" * 1001),
        frame(b"y" * 1001, more=True) * 100 + frame(b""),
    ],
    ids=["frames", "bytes in all", "bytes of one", "many large ones"],
)
def test_a_message_beyond_a_limit_is_an_error_once_and_the_next_one_is_read(too_much: bytes) -> None:
    of = reader(max_bytes=1000)
    assert give(of, too_much[:7]) in ([], ["frames"])
    assert give(of, too_much[7:] + frame(b"good"))[-1] == [b"good"]
    assert not of.is_mid_message


def test_a_frame_that_announces_what_never_comes_takes_no_memory() -> None:
    of = reader()
    assert give(of, head(1 << 33)) == ["frames"]
    assert of.room() is None
    assert give(of, bytes(100_000)) == []
    assert of.is_mid_message


def committed_bytes() -> int:
    """Return the anonymous memory of this process."""
    return int(Path("/proc/self/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024


def test_the_memory_of_a_frame_grows_with_what_has_come_of_it() -> None:
    size = 256 * MIB
    of = reader(max_bytes=size)
    before = committed_bytes()
    assert give(of, head(size)) == []
    piece = bytes(1 << 16)
    for num_come in range(0, 20 * MIB, len(piece)):
        assert of.num_held_bytes <= 4 * num_come + 2 * MIB
        assert committed_bytes() - before <= of.num_held_bytes + 4 * MIB, "what is counted is what is committed"
        room = of.room()
        assert room is not None
        assert len(room) <= ROOM_BYTES, "one call of the kernel's fills no more"
        del room
        assert give(of, piece) == []


@pytest.mark.parametrize(
    "size", [(1 << 16) + 1, (1 << 18) + 1, MIB, MAPPED_BYTES - 1, MAPPED_BYTES, MAPPED_BYTES * 2 + 1]
)
def test_a_large_frame_is_read_whole(size: int) -> None:
    of = reader(max_bytes=size + 2)
    body = random.Random(size).randbytes(size)
    data = frame(b"a", more=True) + frame(body, more=True) + frame(b"z")
    cut = size // 3
    assert give(of, data[:cut]) == []
    of.feed(data[cut : 2 * cut])  # though there is room
    assert give(of, data[2 * cut :]) == [[b"a", body, b"z"]]
    assert of.num_held_bytes == 0


def test_a_message_that_never_ends_takes_no_memory() -> None:
    of = reader()
    errors = 0
    for _ in range(1000):
        errors += len(give(of, frame(b"x" * 1000, more=True)))
    assert errors == 1
    assert of.num_held_bytes < 2000
    assert give(of, frame(b"") + frame(b"next")) == [[b"next"]]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: somebody\r\nUser-Agent: a browser that is lost\r\n\r\n",
        GREETING[:12].ljust(12) + b"CURVE".ljust(20, b"\0") + bytes(32),
        GREETING + ready(b"PUB"),
        GREETING + frame(b"before the handshake"),
        GREETING + ready() + b"\x08\x00",
        GREETING + ready() + bytes([COMMAND | MORE, 1]) + b"x",
        GREETING + ready() + bytes([COMMAND | 2]) + (1 << 20).to_bytes(8, "big"),
    ],
)
def test_what_is_no_zmtp_is_an_error(data: bytes) -> None:
    assert give(MessageReader(b"DEALER", max_frames=8, max_bytes=1000), data)[-1] == "zmtp"


@given(st.binary(max_size=300))
def test_random_bytes_are_messages_or_errors(data: bytes) -> None:
    give(reader(), data)
