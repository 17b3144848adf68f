"""The copies know every field of what they copy, and share nothing that changes."""

from __future__ import annotations

from dataclasses import fields

import pytest

from mmcached.shm.ring.chain import Chunk
from scripts.verification.lease_between import modelled_locks
from scripts.verification.lease_copies import FIELDS, SLOTS
from scripts.verification.lease_scenarios import Setting
from scripts.verification.lease_world import Budget, World


@pytest.fixture
def world() -> World:
    with modelled_locks():
        return World.start(Setting(started="all"), Budget(puts=1, grants=1, plans=1))


def test_no_field_is_forgotten(world: World) -> None:
    engine, ring = world.engine, world.ring
    assert engine is not None
    assert engine.entry is not None
    chunks = ring.chunks
    for each in (
        ring.leases,
        ring.watch,
        chunks,
        chunks._allocator,
        engine.entry,
        engine.entry._received,
        engine.book,
        engine.group,
    ):
        assert vars(each).keys() == FIELDS[type(each)]


def test_no_slot_of_a_chunk_is_forgotten() -> None:
    known = {"end", "extent", "heat", "next", "offset", "prev", "root", "used_at", "was_hit", "worth"}
    assert set(Chunk.__slots__) == known


@pytest.mark.parametrize("kind", SLOTS)
def test_no_slot_is_forgotten(kind: type) -> None:
    assert tuple(field.name for field in fields(kind)) == SLOTS[kind]


def test_what_is_done_to_a_copy_does_not_reach_the_original(world: World) -> None:
    """Every event, one after the other: the world that it was done to keeps its key."""
    with modelled_locks():
        for _ in range(30):
            before = [part.key() for part in world.parts()]
            reached = []
            for event in world.events():
                after = world.with_parts(world.parts())
                event.run(after)
                reached.append(after)
            assert [part.key() for part in world.parts()] == before
            if not reached:
                break
            world = reached[-1]
