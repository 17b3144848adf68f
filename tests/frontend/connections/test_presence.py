"""Which connection acts for a client: the first, until it is closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from mmcached.frontend.connections.presence import ClientPresence
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.paths import RunDir

CLIENT = "0" * 32
FORMER, NEXT = b"former", b"next"


class Channel:
    """Connections, of which a test says which are connected."""

    def __init__(self) -> None:
        self.connected = {FORMER, NEXT}

    def is_connected(self, peer: bytes) -> bool:
        return peer in self.connected


@pytest.fixture
def channel() -> Channel:
    return Channel()


@pytest.fixture
def presence(run_dir: Path, channel: Channel) -> ClientPresence:
    return ClientPresence(RunDir(run_dir), cast(Any, channel))


def test_another_connection_of_a_connected_client_is_refused(presence: ClientPresence) -> None:
    assert presence.bind(FORMER, CLIENT)
    with pytest.raises(RemoteProtocolError):
        presence.bind(NEXT, CLIENT)


def test_last_messages_of_a_closed_connection_are_dropped_and_no_fault(
    presence: ClientPresence, channel: Channel
) -> None:
    """The frontend may read the next connection first."""
    assert presence.bind(FORMER, CLIENT)
    channel.connected.remove(FORMER)
    assert presence.bind(NEXT, CLIENT)
    assert not presence.bind(FORMER, CLIENT)
    assert presence.peers == [NEXT]
