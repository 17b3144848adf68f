"""A client made of pyzmq and msgpack: a DEALER of libzmq pings, puts, gets and encodes without our sockets."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from PIL import Image

from mmcached.cli.serve.child_service import ChildService
from mmcached.shm.files.lock_file import LockFile
from mmcached.shm.store.codec import decode_record_frames, encode
from mmcached.wire.paths import RunDir
from mmcached.wire.version import PROTOCOL_VERSION
from tests.integration.processes import DEADLINE_S

CLIENT = "c0ffee" * 5 + "00"
RECORD = {"name": "cat", "ids": [1, 2, 3]}


class ForeignClient:
    def __init__(self, dealer: zmq.Socket[bytes]) -> None:
        self._dealer = dealer

    def ask(self, *message: Any, payload: tuple[bytes, ...] = ()) -> tuple[list[Any], list[bytes]]:
        """Send a message by its name and fields; return the answer's, and its payload."""
        version = b"mmc" + bytes([PROTOCOL_VERSION])
        self._dealer.send_multipart([version, msgpack.packb(message), *payload])
        assert self._dealer.poll(round(DEADLINE_S * 1000)), message[0]
        frames = self._dealer.recv_multipart()
        assert frames[0] == version
        return msgpack.unpackb(frames[1]), frames[2:]


@pytest.fixture
def client(lasting_service: ChildService) -> Iterator[ForeignClient]:
    directory = RunDir(Path(lasting_service.run_dir))
    with LockFile(directory.client_lock(CLIENT)), zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.IDENTITY, b"a name that means nothing")
        dealer.connect(directory.client_address)
        yield ForeignClient(dealer)


def test_a_dealer_of_libzmq_pings_puts_gets_and_encodes(client: ForeignClient) -> None:
    welcome, _ = client.ask("ClientHello", CLIENT)
    assert welcome[0] == "Welcome"
    store_epoch = welcome[7]
    assert client.ask("Probe", 1, DEADLINE_S)[0][:3] == ["Probed", 1, [0]]
    frames = tuple(bytes(frame) for frame in encode(RECORD).frames())
    stored, _ = client.ask("PutRecord", CLIENT, 2, "animals/cat", store_epoch, payload=frames)
    assert stored[0:2] == ["Stored", 2]
    assert stored[3] is True, stored
    records, payload = client.ask("GetRecords", CLIENT, 3, ["animals/cat", "animals/dog"])
    assert records[:2] == ["Records", 3]
    (first, count), missing = records[3][0][1:], records[3][1]
    assert missing is None
    assert decode_record_frames(payload[first : first + count], tensors="numpy") == RECORD
    picture = io.BytesIO()
    Image.new("RGB", (64, 48), "teal").save(picture, "PNG")
    encoded, outputs = client.ask("Encode", CLIENT, 4, DEADLINE_S, payload=(picture.getvalue(),))
    assert encoded[:2] == ["Encoded", 4]
    assert len(encoded[2]) == 1
    assert outputs
