"""An engine at the wire: a real connection to a frontend; a test says the rest."""

from __future__ import annotations

import hashlib
import secrets

from mmcached.client.store.tokens import checked_token
from mmcached.shm import ObjectStoreReader, RingReader
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as to_frontend
from mmcached.wire.messages.parts import Inline, StoredItem
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame
from tests.doubles.dealer import Dealer


class WireEngine:
    """One engine process, which has said hello.

    Attributes:
        backlog: messages that have come, with their payload.
    """

    def __init__(self, directory: RunDir, *, digest: str, index: int = 0) -> None:
        self._address = directory.engine_address
        self._hello = to_frontend.EngineHello(index, secrets.randbits(62), digest)
        self.is_greeted = self.is_greeting = False
        self.backlog: list[tuple[to_engine.FromFrontend, list[Frame]]] = []
        self._connect()

    def _connect(self) -> None:
        self.channel: Dealer[to_engine.FromFrontend] = Dealer(self._address, to_engine.FromFrontend)
        self.channel.send(self._hello)

    def connect_anew(self) -> None:
        """Lose the connection and say hello over another; the same process."""
        self.is_greeted = self.is_greeting = False
        self.channel.close()
        self._connect()

    def greet_again(self) -> None:
        """Say hello once more, which changes nothing; the answer comes behind what was sent before, and ends
        `is_greeting`.
        """
        self.channel.send(self._hello)
        self.is_greeting = True

    def receive(self) -> None:
        """Put what has come into the backlog, except greetings that are answered here."""
        while self.channel.wait(0):
            message, payload = self.channel.receive(0)
            if isinstance(message, to_engine.Greeted):
                if self.is_greeting:
                    self.is_greeting = False
                    continue
                self.is_greeted = True
            self.backlog.append((message, payload))

    def close(self) -> None:
        """End as a process does: no goodbye."""
        self.channel.close()


def checksum(ring: RingAnnouncement | None, payload: StoredItem | Inline) -> str:
    """Return what a worker answers that reads a probe's item."""
    assert ring is not None
    assert isinstance(payload, StoredItem)
    token = checked_token(payload.token)
    with RingReader.open(ring) as reader:
        place = reader.look.find_generation(token.slot, token.generation)
        assert place is not None
        record = ObjectStoreReader(reader).get(place, tensors="numpy", copy=True)
    return hashlib.blake2b(record["probe"].tobytes(), digest_size=16).hexdigest()
