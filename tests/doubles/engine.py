"""An engine at the wire: a real connection to a frontend and a real entry of its ring; a test says the rest."""

from __future__ import annotations

import hashlib
import secrets

from mmcached.shm import ObjectStoreReader, ReaderEntry, RingReader
from mmcached.wire.handle import Handle, LeaseId, RingAnnouncement
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages.parts import Barrier, Feature
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame
from tests.doubles.dealer import Dealer


def leases_in(message: to_engine.FromFrontend) -> list[tuple[Handle, LeaseId]]:
    parts: list[Feature | to_engine.ProbeEngine] = []
    if isinstance(message, to_engine.AddRequest):
        parts += message.features
    if isinstance(message, to_engine.ProbeEngine):
        parts.append(message)
    return [(part.payload, part.lease) for part in parts if isinstance(part.payload, Handle) and part.lease is not None]


class WireEngine:
    """One engine incarnation, which has said hello.

    Attributes:
        answers_barriers: count leases as they come and answer barriers, as an engine does; else the test does.
        backlog: messages that have come, with their payload.
    """

    def __init__(self, directory: RunDir, *, digest: str, index: int = 0) -> None:
        self._address = directory.engine_address
        self._hello = to_frontend.EngineHello(index, secrets.randbits(62), digest)
        self.entry: ReaderEntry | None = None
        self.answers_barriers = True
        self.is_greeting = False
        self.backlog: list[tuple[to_engine.FromFrontend, list[Frame]]] = []
        self._connect()

    def _connect(self) -> None:
        self.channel: Dealer[to_engine.FromFrontend] = Dealer(self._address, to_engine.FromFrontend)
        self.channel.send(self._hello)

    def connect_anew(self) -> None:
        """Lose the connection and say hello over another; the same process."""
        self.channel.close()
        self._connect()

    def attach(self, announcement: RingAnnouncement) -> None:
        """Take an entry of the ring, and say so."""
        self.entry = ReaderEntry.attach(announcement)
        self.channel.send(to_frontend.ReaderHello(announcement.epoch, self.entry.reader_id, self.entry.incarnation))

    def greet_again(self) -> None:
        """Say once more which entry is taken; the answer, behind all that was sent before, ends `is_greeting`."""
        assert self.entry is not None
        names = self.entry
        self.channel.send(to_frontend.ReaderHello(names.announcement.epoch, names.reader_id, names.incarnation))
        self.is_greeting = True

    def receive(self) -> None:
        """Put what has come into the backlog, except barriers and greetings that are answered here."""
        while self.channel.wait(0):
            message, payload = self.channel.receive(0)
            if self.is_greeting and isinstance(message, to_engine.ReaderAttached):
                self.is_greeting = False
                continue
            if self.answers_barriers and self.entry is not None:
                if isinstance(message, Barrier):
                    self.answer(message)
                    continue
                self.take_leases(message)
            self.backlog.append((message, payload))

    def take_leases(self, message: to_engine.FromFrontend) -> None:
        assert self.entry is not None
        for handle, lease in leases_in(message):
            self.entry.receive(handle, lease)

    def answer(self, barrier: Barrier) -> None:
        """Say which leases have arrived."""
        assert self.entry is not None
        counts = self.entry.answer_barrier(barrier.incarnation, barrier.last_seq, barrier.slots)
        self.channel.send(to_frontend.Reconcile(barrier.incarnation, barrier.barrier_id, counts or {}))

    def checksum(self, handle: Handle) -> str:
        """Return what a worker answers that reads a probe's item."""
        assert self.entry is not None
        with RingReader.open(self.entry.announcement) as reader:
            record = ObjectStoreReader(reader).get(handle, tensors="numpy", copy=True)
        return hashlib.blake2b(record["probe"].tobytes(), digest_size=16).hexdigest()

    def close(self) -> None:
        """End as a process does: no goodbye."""
        self.channel.close()
        if self.entry is not None:
            self.entry.close()
