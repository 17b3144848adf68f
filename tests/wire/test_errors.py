"""Every error arrives as what it was, rebuilt by its code and never by its text."""

from __future__ import annotations

import msgspec
import pytest

from mmcached.wire import errors
from mmcached.wire.errors import ErrorInfo, MmcachedError, error_from_wire, error_to_wire

EXAMPLES: list[MmcachedError] = [
    MmcachedError("something", note="x"),
    errors.CacheMiss(["a" * 64, "b"]),
    errors.ItemTooLarge(10, 5),
    errors.CacheFull(10, 100, 95),
    errors.ChecksumMismatch(3, 1, 2),
    errors.StaleHandle("generation 3 is gone"),
    errors.MissingRows("hidden", 3, 5),
    errors.LayoutMismatch("version", 2, 1),
    errors.SegmentError("no room", nbytes=7),
    errors.ProtocolError("broken"),
    errors.LocalProtocolError("not now"),
    errors.RemoteProtocolError("expected int", "$.slot"),
    errors.PeerGone("worker 1 is gone", rank=1),
    errors.ChannelFull("full"),
    errors.ServiceUnavailable("draining"),
    errors.DeadlineExceeded("generate", 1.5),
    errors.RequestAborted("cancelled"),
    errors.ClientClosed(),
    errors.ComputationFailed("OutOfMemoryError", retryable=True),
    errors.PoisonousRequest(2, 2),
    errors.SecondLevelNotFlushed("no answer"),
    errors.InvalidRequest("prompt", "", "must not be empty"),
    errors.EmptyImage("images[0]", 0, "has no bytes"),
    errors.CorruptImage("images[1]", "12 bytes", "is damaged"),
    errors.ImageTooLarge("images[2]", 10**9, "at most 64000000 pixels"),
    errors.EmptyClip("videos[0]", 0, "has no bytes"),
    errors.CorruptClip("videos[1]", "12 bytes", "is damaged"),
    errors.ClipTooLarge("audios[0]", 7200.0, "at most 3600.0 s"),
    errors.ConfigError("world_size", 0, "must be between 1 and 16"),
    errors.InvariantError("books differ"),
]


def classes() -> list[type[MmcachedError]]:
    """Every class of the module."""
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, MmcachedError)]


def over_the_wire(error: MmcachedError) -> MmcachedError:
    packed = msgspec.msgpack.encode(error_to_wire(error))
    return error_from_wire(msgspec.msgpack.decode(packed, type=ErrorInfo))


def test_the_examples_are_all_there_are() -> None:
    assert [type(example) for example in EXAMPLES] == classes()


def test_codes_are_unique() -> None:
    assert len({cls.code for cls in classes()}) == len(classes())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
def test_round_trip(error: MmcachedError) -> None:
    """Also: callers of the published classes catch what they catch there."""
    arrived = over_the_wire(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.details == error.details
    assert list(map(type, arrived.details.values())) == list(map(type, error.details.values()))
    assert arrived.retryable == error.retryable
    assert isinstance(arrived, ValueError) == isinstance(error, errors.InvalidRequest | errors.ItemTooLarge)
    assert not isinstance(arrived, (AssertionError, LookupError, MemoryError, RuntimeError))


def test_a_code_of_a_later_version_becomes_the_base() -> None:
    arrived = error_from_wire(ErrorInfo("from_the_future", "text", False, {"n": 1}))
    assert type(arrived) is MmcachedError
    assert (str(arrived), arrived.details) == ("text", {"n": 1})
