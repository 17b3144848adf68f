"""Plays clients that lay large records into nurseries, as they are killed and stopped in the middle of it.

A layer opens a nursery, fills places that were granted to it, and says where a record lies, several at a time. Whatever
the frontend answers, or whichever frontend that is by now, it goes on with what it believes: what it believes wrongly
the frontend has to refuse. Now and then it names a place of a nursery that it had before.
"""

from __future__ import annotations

import random
import select
import time
from contextlib import suppress

import msgspec
import numpy as np
import zmq

from mmcached.cache.store_keys import about_record, store_key
from mmcached.client.store.nursery import ClientNursery
from mmcached.shm.store import codec
from mmcached.shm.store.record_note import pack_note
from mmcached.wire.errors import MmcachedError
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.parts import MIN_PLACED_BYTES
from scripts.verification.chaos_roles import (
    KEYS,
    NUM_KEYS,
    NUM_LAID,
    SILENCE_S,
    TENANT,
    Count,
    Laid,
    Lay,
    Open,
    Opened,
    Phase,
    Ring,
    Role,
    Who,
    new_stamp,
    open_socket,
)

MAX_WORDS = MIN_PLACED_BYTES // 3
"""Of a record: 170 KiB."""
MAX_OPEN = 4
FORMER_ONE_IN = 50


class Layer:
    """Lays records until it is killed or the phase is over."""

    def __init__(self, role: Role, socket: zmq.Socket[bytes]) -> None:
        self._role = role
        self._socket = socket
        self._random = random.Random(role.seed)
        self._decoder = msgspec.msgpack.Decoder(Ring | Opened | Laid)
        self._ring: RingAnnouncement | None = None
        self._nursery: ClientNursery | None = None
        self._epoch = self._number = 0
        self._open: dict[int, Lay] = {}
        self._former: Lay | None = None
        self._heard_at = -SILENCE_S

    def run(self) -> None:
        while (phase := self._role.board.phase) != Phase.END:
            while self._socket.poll(0):
                self._listen()
            if phase == Phase.REST:
                select.select([], [], [], 0.005)
            elif time.monotonic() - self._heard_at > SILENCE_S:  # also when it has said nothing for as long
                self._begin_anew()
            elif self._nursery is None or len(self._open) >= MAX_OPEN or not self._lay():
                self._socket.poll(5)

    def _begin_anew(self) -> None:
        self._heard_at = time.monotonic()
        self._lose()
        self._say(Who())

    def _lose(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None
            self._former = next(iter(self._open.values()), self._former)
            self._open.clear()

    def _listen(self) -> None:
        self._heard_at = time.monotonic()
        match self._decoder.decode(self._socket.recv()):
            case Ring(announcement):
                self._ring = announcement
                self._say(Open(MIN_PLACED_BYTES))
            case Opened(epoch, grants):
                self._epoch = epoch
                if grants is not None and self._nursery is not None and grants.nursery == self._nursery.nursery:
                    self._nursery.granted(grants)
                    return
                self._lose()
                if grants is not None and self._ring is not None:
                    self._nursery = ClientNursery(grants, has_checksums=False)
                    with suppress(MmcachedError):  # it is drained already: the next silence brings another
                        self._nursery.map(self._ring)
            case Laid(number, epoch, grants, is_stale):
                self._epoch = epoch
                self._open.pop(number, None)
                if self._nursery is not None:
                    self._nursery.answered(number, grants)
                if is_stale:
                    self._role.count(Count.STALE_PLACES)
                    if number % FORMER_ONE_IN:  # else it was to be refused
                        self._lose()
                        self._say(Open(MIN_PLACED_BYTES))

    def _lay(self) -> bool:
        """Lay a record and say where it lies; return whether there was room."""
        assert self._nursery is not None
        self._number += 1
        if self._number % FORMER_ONE_IN == 0 and self._former is not None:
            self._say(msgspec.structs.replace(self._former, number=self._number))
            return True
        key = self._random.randrange(NUM_KEYS, NUM_KEYS + NUM_LAID)
        epoch, stamp = self._epoch, new_stamp(key)
        num_words = self._random.randint(MIN_PLACED_BYTES // 8, MAX_WORDS)
        encoded = codec.encode({"words": np.full(num_words, stamp, np.uint64)})
        note = pack_note(store_key(TENANT, KEYS[key]), about_record(TENANT, KEYS[key], time.monotonic_ns()))
        place = self._nursery.lay(self._number, encoded, note)
        if place is None:
            if not self._open:  # there will be no answer that brings room
                self._say(Open(encoded.nbytes + len(note), self._nursery.nursery))
            return False
        self._open[self._number] = Lay(self._number, key, epoch, stamp, place)
        self._say(self._open[self._number])
        return True

    def _say(self, message: Who | Open | Lay) -> None:
        with suppress(zmq.Again):
            self._socket.send(msgspec.msgpack.encode(message), zmq.NOBLOCK)


def run_layer(role: Role) -> None:
    """Lay records, whoever the frontend is."""
    with zmq.Context() as context, open_socket(context, zmq.DEALER) as socket:
        socket.setsockopt(zmq.IDENTITY, role.identity)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.connect(role.address)
        Layer(role, socket).run()
