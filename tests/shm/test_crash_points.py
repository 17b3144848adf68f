"""Each crash point is taken by a real process; then whoever survives looks whether all promises still hold."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys

import msgspec
import pytest

from mmcached.shm import HostCalls, ObjectStoreWriter, ReaderEntry, ReaderVoided, RingReader, RingWriter, sweep
from mmcached.shm.crash_points import READER_LABELS, VARIABLE, WRITER_LABELS, Label, parse
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.segment import segment
from mmcached.shm.segment.segment import WriterSegment
from mmcached.wire.errors import ConfigError, LayoutMismatch, SegmentError
from mmcached.wire.handle import RingAnnouncement
from tests.shm.crash_child import EPOCH, LAYOUT, record_of
from tests.shm.crash_parties import Party, Survivor
from tests.shm.integrity import check_ring
from tests.shm.processes import DEADLINE_S, Died
from tests.shm.rings import Taking, attached, make_ring, reading


def names_left(ring_id: str) -> list[str]:
    return [name.rpartition(".")[2] for name in segment.leftover_names(os.getuid()) if ring_id in name]


def make_named(ring_id: str) -> RingWriter:
    made = WriterSegment.create(LAYOUT, epoch=EPOCH, host=HostCalls(), new_ring_id=lambda: ring_id)
    return RingWriter(made, max_object_bytes=LAYOUT.data_bytes)


# ---- the writer dies

NUM_PUTS = 30
"""Enough for two laps."""

WRITER_PASSES: dict[Label, int] = {
    "put.after_evict": NUM_PUTS - 2,
    "put.mid_payload": 2 * NUM_PUTS - 3,  # two tensors per record: before the second of a late one
    "put.before_commit": NUM_PUTS - 2,
    "put.after_commit": NUM_PUTS - 2,
    "item.before_send": NUM_PUTS - 2,
    "item.after_send": NUM_PUTS - 2,
}
"""Which pass kills; else the first."""

WRITER_DIES_IN = {
    "create": "create",
    "put": "put",
    "item": "put",
    "deaths": "poll_deaths",
    "close": "close",
}
"""The command that stays without an answer, by the first word of the label."""

NAMES_LEFT: dict[Label, list[str]] = {
    "create.after_ctl": ["ctl"],
    "create.after_lock": ["ctl"],
    "create.after_ctl_allocated": ["ctl"],
    "close.between_unlinks": ["ctl"],
}
"""What a writer that died there leaves for the sweep; else both."""


def live_until_death(party: Party, ring_id: str, survivors: list[Survivor]) -> None:
    """Drive a writer through its life; as soon as there is a ring, a reader of this process is put into `survivors`."""
    announcement = msgspec.convert(party.ask("create", ring_id), RingAnnouncement)
    survivor = Survivor(announcement)
    survivors.append(survivor)
    assert party.ask("attach", survivor.entry.reader_id, survivor.entry.incarnation)
    for value in range(NUM_PUTS):
        survivor.receive(value, party.ask("put", value), keep=value in (0, NUM_PUTS // 2))
    with ReaderEntry.attach(announcement) as second:
        assert party.ask("attach", second.reader_id, second.incarnation)
    assert party.ask("poll_deaths") == 1
    party.ask("close")


@pytest.mark.parametrize("label", [label for label in WRITER_LABELS if label != "sweep.between_unlinks"])
def test_a_writer_that_dies_anywhere_harms_no_reader_and_its_successor_goes_on(label: Label) -> None:
    ring_id = secrets.token_hex(16)
    survivors: list[Survivor] = []
    with Party("writer", f"{label}:{WRITER_PASSES.get(label, 1)}") as party:
        with pytest.raises(Died, match=WRITER_DIES_IN[label.partition(".")[0]]):
            live_until_death(party, ring_id, survivors)
        assert party.exit_code() == -signal.SIGKILL
    assert bool(survivors) is not label.startswith("create.")
    assert names_left(ring_id) == NAMES_LEFT.get(label, ["ctl", "data"])
    if not survivors:  # half made: nobody takes it for a ring
        announced = RingAnnouncement(
            os.getuid(), ring_id, EPOCH, LAYOUT.data_bytes, LAYOUT.num_slots, LAYOUT.max_readers
        )
        with pytest.raises((LayoutMismatch, SegmentError)):
            RingReader.open(announced)
    with pytest.raises(SegmentError, match="mmcached shm gc"):
        make_named(ring_id)
    sweep()
    assert names_left(ring_id) == []
    with make_named(ring_id) as ring, ObjectStoreWriter(ring) as store:
        handle = store.put("new", record_of(99))
        reader = Survivor(ring.announcement)
        assert ring.readers.attach(reader.entry.reader_id, reader.entry.incarnation)
        reader.receive(99, handle)
        assert ring.stats().leases == 0
        check_ring(ring)
        reader.close()
    for survivor in survivors:
        survivor.check()  # last: on its old mapping, after all of that
        survivor.give_all_back()
        survivor.close()
    assert names_left(ring_id) == []


def test_a_sweep_that_dies_half_way_is_finished_by_the_next() -> None:
    ring_id = "0" * 16 + secrets.token_hex(8)  # first in the order of sweeping, should others have left something
    dead = WriterSegment.create(LAYOUT, epoch=EPOCH, host=HostCalls(), new_ring_id=lambda: ring_id)
    dead.control.close()  # the lock goes, the names stay
    with Party("writer", "sweep.between_unlinks") as party:
        with pytest.raises(Died):
            party.ask("sweep")
        assert party.exit_code() == -signal.SIGKILL
    assert names_left(ring_id) == ["ctl"]
    sweep()
    assert names_left(ring_id) == []


# ---- a reader dies

KEPT, GIVEN = 0, 1

READER_DIES_IN = {
    "entry": "attach",
    "reader": "open",
    "read": "receive",
    "read.in_finalizer": "release",
    "give_back": "release",
}
"""The command that stays without an answer, by the label or its first word."""


def attach_until_death(ring: RingWriter, store: ObjectStoreWriter, party: Party) -> None:
    """Drive a reader through its life."""
    announcement = ring.announcement
    reader_id, incarnation = party.ask("attach", announcement)
    assert ring.readers.attach(reader_id, incarnation)
    early = store.find(str(KEPT))
    assert early is not None
    party.ask("open", announcement)
    assert party.ask("receive", KEPT, early)
    handle = store.put(str(GIVEN), record_of(GIVEN))
    assert party.ask("receive", GIVEN, handle)
    party.ask("release")


@pytest.mark.parametrize(
    "label",
    [label for label in READER_LABELS if label != "take.after"],  # which has its own
)
def test_a_reader_that_dies_anywhere_costs_nobody_anything(label: Label) -> None:
    ring_id = secrets.token_hex(16)
    with make_named(ring_id) as ring, ObjectStoreWriter(ring) as store:
        survivor = Survivor(ring.announcement)
        assert ring.readers.attach(survivor.entry.reader_id, survivor.entry.incarnation)
        kept = store.put(str(KEPT), record_of(KEPT))
        survivor.receive(KEPT, kept, keep=True)
        with Party("reader", label) as party:
            with pytest.raises(Died, match=READER_DIES_IN.get(label, READER_DIES_IN[label.partition(".")[0]])):
                attach_until_death(ring, store, party)
            assert party.exit_code() == -signal.SIGKILL
        is_attached = ring.board.attached(1) != 0
        assert is_attached is not label.startswith("entry.")
        early = store.put("early", record_of(50))
        survivor.receive(50, early)  # before anybody has looked who is dead
        assert [type(event) for event in ring.readers.poll_deaths()] == [ReaderVoided] * is_attached
        assert ring.stats().leases == 1
        for value in range(2, NUM_PUTS):  # progress: only what the survivor holds is in the way
            store.put(str(value), record_of(value))
        survivor.check()
        assert store.find(str(GIVEN)) is None
        successor = Survivor(ring.announcement)
        assert successor.entry.reader_id == 1
        assert ring.readers.attach(1, successor.entry.incarnation)
        successor.receive(KEPT, kept)
        survivor.give_all_back()
        assert ring.stats().leases == 0
        check_ring(ring)
        survivor.close()
        successor.close()
    sweep()
    assert names_left(ring_id) == []


def test_a_reader_that_dies_with_a_lease_that_it_took_by_itself_costs_nobody_anything() -> None:
    with make_ring(1 << 14, has_index=True) as ring, ObjectStoreWriter(ring) as store:
        handle = store.put("taken", record_of(GIVEN))
        with Party("reader", "take.after") as party:
            reader_id, incarnation = party.ask("attach", ring.announcement)
            assert ring.readers.attach(reader_id, incarnation)
            party.ask("open", ring.announcement)
            with pytest.raises(Died, match="take"):
                party.ask("take", "taken")
            assert party.exit_code() == -signal.SIGKILL
        for value in range(NUM_PUTS):  # before anybody has looked who is dead, only its lease is in the way
            store.put(str(value), record_of(value))
        assert store.find("taken") == handle
        assert ring.readers.poll_deaths() == [ReaderVoided(reader_id, incarnation)]
        assert (ring.stats().leases, ring.stats().pinned_bytes) == (0, 0)
        for value in range(NUM_PUTS, 2 * NUM_PUTS):
            store.put(str(value), record_of(value))
        assert store.find("taken") is None
        with attached(ring) as successor, reading(ring) as reader:
            assert successor.reader_id == reader_id
            assert successor.taken_bytes == 0
            found = reader.look.find(key_digest(str(value)))
            assert found is not None
            assert successor.take_leases([Taking(found)], reader.look) == [True]
            assert ring.stats().leases == 1
            successor.give_back(found)
            assert ring.stats().leases == 0
        check_ring(ring)


# ---- the points themselves


def run_child(crash_at: str) -> subprocess.CompletedProcess[str]:
    program = (
        "from mmcached.shm.crash_points import crash_point\n"
        "for n in range(3):\n"
        "    crash_point('put.after_commit')\n"
        "    crash_point('put.before_commit')\n"
        "    print(n, flush=True)\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {VARIABLE: crash_at},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_nth_pass_kills() -> None:
    child = run_child("put.before_commit:3")
    assert (child.returncode, child.stdout) == (-signal.SIGKILL, "0\n1\n")


def test_an_empty_variable_kills_nobody() -> None:
    child = run_child("")
    assert (child.returncode, child.stdout) == (0, "0\n1\n2\n")


def test_a_label_that_does_not_exist_is_an_error_at_import() -> None:
    child = run_child("put.after_comit")
    assert child.returncode == 1
    assert "ConfigError" in child.stderr


@pytest.mark.parametrize("value", ["", "put", "put.after_commit:", "put.after_commit:0", "put.after_commit:x", ":1"])
def test_what_names_no_pass_is_refused(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(value)
    assert caught.value.details["field"] == VARIABLE
