"""Death, with real processes and `kill -9`."""

from __future__ import annotations

import pytest

from mmcached.shm import ReaderStopped, ReaderVoided
from mmcached.shm.segment.layout import Layout
from mmcached.wire.errors import CacheFull
from tests.shm.processes import Process, attach, digest
from tests.shm.rings import make_ring, overwritten, put


def test_a_killed_readers_leases_are_void_and_anothers_stay() -> None:
    with make_ring(4 * 64) as ring, Process() as one, Process() as two:
        id_one, incarnation_one = attach(ring, one)
        attach(ring, two)
        handles = [put(ring, 64, value) for value in range(4)]
        for handle in handles[:3]:
            assert one.ask("take", handle)
            one.ask("view", handle)
        for handle in handles[2:]:
            assert two.ask("take", handle)
            two.ask("view", handle)
        with pytest.raises(CacheFull):
            ring.claim(64)
        assert ring.readers.poll_deaths() == []
        one.kill()
        assert ring.stats().leases == 5  # until the writer looks
        assert ring.readers.poll_deaths() == [ReaderVoided(id_one, incarnation_one)]
        assert ring.readers.poll_deaths() == []
        assert ring.stats().leases == 2
        put(ring, 2 * 64, 77)  # exactly the bytes that only the dead one held
        with pytest.raises(CacheFull):
            ring.claim(3 * 64)
        assert two.ask("digests") == [digest(2, 64), digest(3, 64)]


def test_a_silent_reader_is_not_dead() -> None:
    with make_ring(64) as ring, Process() as process:
        attach(ring, process)
        assert process.ask("take", put(ring, 64))
        process.stop()
        assert [ring.readers.poll_deaths() for _ in range(100)] == [[]] * 100
        with pytest.raises(CacheFull):
            ring.claim(64)


def test_a_restarted_reader_takes_the_entry_in_a_new_life_before_the_writer_looks() -> None:
    with make_ring(64) as ring, Process() as old, Process() as new:
        reader_id, incarnation = attach(ring, old)
        handle = put(ring, 64, 5)
        assert old.ask("take", handle)
        old.kill()
        id_again, new_incarnation = new.ask("attach", ring.announcement)
        assert id_again == reader_id
        assert new_incarnation != incarnation
        assert not ring.readers.attach(reader_id, incarnation)  # the old life's Hello, late
        new.ask("open", ring.announcement)
        assert not new.ask("take", handle), "nobody has said that it may"
        new.ask("give_back", handle)
        assert ring.readers.attach(reader_id, new_incarnation)
        assert ring.readers.poll_deaths() == [ReaderVoided(reader_id, incarnation)]
        assert ring.stats().leases == 0
        assert new.ask("take", handle)
        assert ring.stats().leases == 1
        new.ask("give_back", handle)
        put(ring, 64)


def test_an_overwritten_incarnation_voids_no_lease_of_the_living() -> None:
    with make_ring(64) as ring, Process() as process:
        reader_id, incarnation = attach(ring, process)
        assert process.ask("take", put(ring, 64, 5))
        assert ring.readers.poll_deaths() == []
        with overwritten(ring.announcement.ctl_name) as words:
            words[Layout(64, 64, 4).incarnation_word(reader_id)] = 0
        (event,) = ring.readers.poll_deaths()
        assert isinstance(event, ReaderStopped)
        with pytest.raises(CacheFull):
            ring.claim(64)
        process.kill()
        assert ring.readers.poll_deaths() == [ReaderVoided(reader_id, incarnation)]
        put(ring, 64)
