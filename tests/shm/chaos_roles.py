"""What the writer and the readers of a chaos run share: who they are, and what they say to each other.

    reader ── Who ──> writer        reader ── Hello(ring, row, nonce) ──> writer
    reader <── Ring(announcement) ──              <── Lease(handle, lease) ── …

A writer that is killed takes its socket along; its successor binds the same path, and readers that hear nothing for a
while ask who is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from mmcached.shm import Claim
from mmcached.wire.handle import Handle, LeaseId, RingAnnouncement
from tests.shm.chaos_board import Board, Count


class Who(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A reader wants to know which ring there is."""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A reader has taken a row."""

    ring_id: str
    row: int
    nonce: int


class Ring(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The writer's ring."""

    announcement: RingAnnouncement


class Lease(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """One descriptor."""

    handle: Handle
    lease: LeaseId


@dataclass(frozen=True, slots=True)
class Role:
    """What a role is told when it is forked."""

    run_dir: Path
    board: Board
    life: int
    seed: int

    def count(self, count: Count, number: int = 1) -> None:
        self.board.add(self.life, count, number)

    @property
    def address(self) -> str:
        return f"ipc://{self.run_dir}/ring"


def stamp_of(chunk: Claim | Handle) -> int:
    """Return the word that a chunk's payload consists of."""
    return chunk.generation << 16 | chunk.slot


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    for option in (zmq.SNDHWM, zmq.RCVHWM):
        socket.setsockopt(option, 16)
    socket.setsockopt(zmq.LINGER, 0)
    return socket
