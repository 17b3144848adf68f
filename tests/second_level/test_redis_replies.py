"""Replies are read as they were sent, however they come in pieces; whatever else comes ends in a `BackendError`."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.second_level.backend import BackendError
from mmcached.second_level.redis.replies import Replies, Reply
from tests.second_level.conftest import in_time

TOKENS = (b"$", b"+", b"-", b":", b"*", b"\r\n", b"\r", b"\n", b"0", b"1", b"3", b"-1", b"-2", b"70000", b"9" * 20)
WORDS = (b"OK", b"abc", b"ERR no", b"MOVED 1 a:1", b"ASK", b"LOADING", b"WRONGTYPE", b"NOAUTH", b"\xff\0", b" ")


def read_all(sent: Sequence[bytes]) -> list[Reply]:
    """Return what is read until there is no more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.settimeout(0)
        for piece in sent:
            theirs.sendall(piece)
        theirs.shutdown(socket.SHUT_WR)
        replies = Replies()
        replies.on_connect(SimpleNamespace(_sock=ours))
        found: list[Reply] = []
        try:
            while True:
                found.append(replies.read(in_time()))
        except BackendError:
            return found


def framed(value: bytes | int | None) -> bytes:
    if value is None:
        return b"$-1\r\n"
    return b":%d\r\n" % value if isinstance(value, int) else b"$%d\r\n%b\r\n" % (len(value), value)


@given(
    st.lists(st.one_of(st.none(), st.integers(-(1 << 60), 1 << 60), st.binary(max_size=40)), max_size=6),
    st.lists(st.sampled_from([20_000, 65_530, 65_536]), max_size=1),
    st.integers(1, 100),
)
def test_what_was_sent_is_read(values: list[bytes | int | None], large: list[int], step: int) -> None:
    values += [bytes(range(256)) * (nbytes // 256) for nbytes in large]
    sent = b"".join(map(framed, values))
    pieces = [sent[at : at + step] for at in range(0, min(len(sent), 50 * step), step)] + [sent[50 * step :]]
    found = [bytes(one) if isinstance(one, memoryview) else one for one in read_all(pieces)]
    assert found == values


@given(st.lists(st.sampled_from(TOKENS + WORDS), max_size=30))
def test_whatever_comes_ends_in_an_error(sent: list[bytes]) -> None:
    for reply in read_all(sent):
        assert reply is None or isinstance(reply, bytes | memoryview | int | Exception)


def test_nothing_is_read_after_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"+OK\r\n")
        replies = Replies()
        replies.on_connect(SimpleNamespace(_sock=ours))
        with pytest.raises(BackendError):
            replies.read(time.monotonic() - 1)
