"""What must hold in every state.

    I1  the bytes under a lease that a living process holds, reads under, or is about to receive, are untouched
    I2  from here on, without another kill or loss, all leases can come back: asked of the whole graph, by the explorer
    I3  a living incarnation has not given back more than it was granted: `check_integrity` of P0's books
    I4  a word of a row is written by the one engine that has taken it; also checked at each write
    I6  nobody acts on a descriptor of another epoch or incarnation; also checked at each receipt

Of what is under way only the descriptors to the living engine count: any other is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmcached.wire.handle import Handle
from tests.models.explorer import Violation
from tests.models.messages import Descriptor

if TYPE_CHECKING:
    from tests.models.lease_world import World


def check_invariants(world: World) -> None:
    """Raises Violation."""
    for handle, who in _leases_of_the_living(world):
        if not world.ring.holds(handle):
            raise Violation(f"I1: {who} generation {handle.generation}, and it has been overwritten")
    for worker in world.workers():
        if worker.reading is not None and worker.reading.handle.epoch != worker.ring_epoch:
            raise Violation(f"I6: {worker.name} of epoch {worker.ring_epoch} reads {worker.reading.handle}")
    engine = world.engine
    if engine is not None and engine.row is not None and engine.row.announcement.epoch == world.ring.epoch:
        row = engine.row
        if world.ring.nonce_in_row(row.row) != row.nonce:
            raise Violation(f"I4: row {row.row} of {engine.name} has been taken by another engine")


def _leases_of_the_living(world: World) -> Iterator[tuple[Handle, str]]:
    for worker in world.workers():
        if worker.reading is not None:
            yield worker.reading.handle, f"{worker.name} reads"
    engine = world.engine
    if engine is not None and engine.row is not None:
        for held in engine.book._held.values():
            yield held.handle, f"{engine.name} holds"
        for message in world.queues.to_engine:
            if isinstance(message, Descriptor) and engine.row.owns(message.handle, message.lease):
                yield message.handle, f"{engine.name} is about to receive"
