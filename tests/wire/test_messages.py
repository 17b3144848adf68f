"""Messages: what was sent is what arrives, every member of every union, and each is as strict as its fields say."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.sockets.frames import decode_frames, encode_frames, make_decoder
from tests.wire.examples import ANNOUNCEMENT, EXAMPLES, RING_ID, UNIONS


def test_round_trip() -> None:
    for union, message in EXAMPLES:
        arrived, payload = decode_frames(encode_frames(message), make_decoder(UNIONS[union]))
        assert arrived == message
        assert type(arrived) is type(message)
        assert payload == []


@pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS.keys())
def test_members_are_frozen_tagged_arrays(union: Any) -> None:
    for member in get_args(union):
        config = member.__struct_config__
        assert (config.frozen, config.array_like, config.forbid_unknown_fields) == (True, True, True), member
        assert config.tag == member.__name__


def test_a_ring_s_objects_are_named_after_user_and_id() -> None:
    assert ANNOUNCEMENT.data_name == f"/mmc.1000.{RING_ID}.data"
    assert ANNOUNCEMENT.ctl_name == f"/mmc.1000.{RING_ID}.ctl"


@pytest.mark.parametrize("ring_id", ["", "../../etc/passwd", "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n"])
def test_a_ring_id_cannot_name_another_file(ring_id: str) -> None:
    packed = msgspec.msgpack.encode([1000, ring_id, 1, 1, 1, 1])
    with pytest.raises(msgspec.ValidationError, match="regex"):
        msgspec.msgpack.decode(packed, type=RingAnnouncement)


def test_a_handle_is_small() -> None:
    """About 80 bytes, tag and tenant included; the format that it replaces had 197."""
    assert len(msgspec.msgpack.encode(Handle(RING_ID, 2**62, 4095, 2**40, 2**30, 2**26))) < 100
