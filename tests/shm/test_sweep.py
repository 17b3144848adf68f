"""Other services and test sessions may share this machine: only names of this test's rings are looked at."""

from __future__ import annotations

import os
import secrets

import msgspec
import posix_ipc
import pytest

from mmcached.shm import RingReader, segment, sweep
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.shm.processes import Process
from tests.shm.rings import make_ring, put, reading


def swept(*names: str) -> list[str]:
    """Sweep; return which of these names it removed, in its order."""
    return [name for name in sweep() if name in names]


def names_of(*announcements: RingAnnouncement) -> list[str]:
    return [name for one in announcements for name in (one.data_name, one.ctl_name)]


def make_object(name: str) -> None:
    os.close(posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600).fd)


def test_living_rings_stay() -> None:
    with make_ring() as ring, make_ring() as other:
        assert swept(*names_of(ring.announcement, other.announcement)) == []
        for one in (ring, other):
            with reading(one) as reader:
                assert reader.view(put(one, 10, 7)).tolist() == [7] * 10


def test_a_killed_writer_is_swept_while_a_living_one_and_an_old_mapping_stay() -> None:
    with make_ring() as living, Process() as process:
        announcement = msgspec.convert(process.ask("create", 1 << 16), RingAnnouncement)
        handle = msgspec.convert(process.ask("put", 1000, 5), Handle)
        with RingReader.open(announcement) as reader:
            early = reader.view(handle)
            names = names_of(announcement, living.announcement)
            assert swept(*names) == []
            process.kill()
            assert swept(*names) == names_of(announcement)
            assert swept(*names) == []
            assert set(segment.leftover_names(os.getuid())) & set(names) == set(names_of(living.announcement))
            assert early.tolist() == [5] * 1000
            assert reader.view(handle).tolist() == [5] * 1000
            del early


def test_orphans_of_a_half_finished_sweep_or_creation_go() -> None:
    uid = os.getuid()
    data = f"/mmc.{uid}.{secrets.token_hex(16)}.data"
    ctl = f"/mmc.{uid}.{secrets.token_hex(16)}.ctl"
    make_object(data)
    make_object(ctl)
    assert sorted(swept(data, ctl)) == sorted([data, ctl])


def test_other_users_and_other_names_are_not_touched() -> None:
    uid = os.getuid()
    ring_id = secrets.token_hex(16)
    foreign = [f"/mmc.{uid + 1}.{ring_id}.ctl", f"/mmc.{uid}.{ring_id[1:]}.ctl", f"/mmc.{uid}.{ring_id}.data.old"]
    try:
        for name in foreign:
            make_object(name)
        assert swept(*foreign) == []
        assert foreign[0] in sweep(uid + 1)
    finally:
        for name in foreign:
            segment.unlink(name)


def test_a_name_that_leads_elsewhere_by_now_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another sweep and a new service were faster, between our open and our lock."""
    name = f"/mmc.{os.getuid()}.{secrets.token_hex(16)}.ctl"
    make_object(name)
    open_object = posix_ipc.SharedMemory

    def open_then_lose(*arguments: str) -> object:
        opened = open_object(*arguments)
        if arguments[0] != name:
            return opened
        segment.unlink(name)
        monkeypatch.setattr(posix_ipc, "SharedMemory", open_object)
        make_object(name)
        return opened

    monkeypatch.setattr(posix_ipc, "SharedMemory", open_then_lose)
    try:
        assert swept(name) == []
        assert name in segment.leftover_names(os.getuid())
    finally:
        segment.unlink(name)
