"""The way back of leases: each exactly once, whoever interrupts whom, and nothing in a forked child."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from mmcached.client.store.lease_returns import Lease, LeaseReturns
from mmcached.shm import ReaderEntry, RingReader, RingWriter
from mmcached.shm.store.tensor_bytes import Bytes1D
from mmcached.wire.errors import LocalProtocolError
from tests.client.fork_child import in_child
from tests.shm.integrity import check_ring
from tests.shm.rings import make_ring, put


class Interrupted(ReaderEntry):
    """An entry that is interrupted while it gives back, as by a garbage collection."""

    meanwhile: Callable[[], None] | None = None

    def end(self, lease: object) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super().end(lease)  # type: ignore[arg-type]


class Leased:
    """One chunk of a ring, of which a reader takes leases."""

    def __init__(self, ring: RingWriter, kind: type[ReaderEntry]) -> None:
        self.ring = ring
        self.entry = kind.attach(ring.announcement)
        assert ring.readers.attach(self.entry.reader_id, self.entry.incarnation)
        self.handle = put(ring, 100)
        self.returns = LeaseReturns(self.entry)
        self.mapping = RingReader.open(ring.announcement)
        self.mapping.when_unmapped(self.returns.close_reader)

    def take(self) -> Bytes1D:
        return self.take_lease()[0]

    def take_lease(self) -> tuple[Bytes1D, Lease]:
        holder = self.mapping.holder(self.handle)
        lease = self.returns.bind(holder, self.handle)
        assert self.entry.take_leases([lease], self.mapping.look) == [True]
        return holder, lease

    @property
    def num_leases(self) -> int:
        return self.ring.stats().leases


@contextlib.contextmanager
def leased(kind: type[ReaderEntry] = ReaderEntry) -> Iterator[Leased]:
    with make_ring() as ring:
        made = Leased(ring, kind)
        yield made
        made.mapping.close()
        check_ring(ring)


def test_a_return_in_the_middle_of_a_return_is_not_lost() -> None:
    with leased(Interrupted) as one:
        assert isinstance(one.entry, Interrupted)
        holders, last = [one.take()], one.take()
        one.entry.meanwhile = holders.clear
        del last
        assert one.num_leases == 0


def test_the_entry_closes_after_what_was_queued_before() -> None:
    with leased(Interrupted) as one:
        assert isinstance(one.entry, Interrupted)
        holders = [one.take(), one.take()]

        def view_and_mapping_die() -> None:
            holders.pop()
            one.returns.close_reader()

        one.entry.meanwhile = view_and_mapping_die
        late = one.mapping.holder(one.handle)
        lease = one.returns.bind(late, one.handle)
        holders.pop()
        assert one.num_leases == 0
        with pytest.raises(LocalProtocolError, match="closed"):
            ReaderEntry.end(one.entry, lease)
        del late  # a view that dies after all: nobody is harmed


def test_a_lease_ends_once_and_only_if_it_was_counted() -> None:
    with leased() as one:
        first, lease = one.take_lease()
        second = one.take()
        never = one.mapping.holder(one.handle)
        one.returns.bind(never, one.handle)
        one.returns.end(lease)
        one.returns.end(lease)
        assert one.num_leases == 1
        del first, never
        assert one.num_leases == 1
        assert one.entry.taken_bytes == one.handle.nbytes
        del second
        assert one.num_leases == 0
        assert one.entry.taken_bytes == 0


def test_many_threads_return_each_lease_once() -> None:
    with leased() as one:
        of_threads = [[one.take() for _ in range(100)] for _ in range(4)]
        threads = [threading.Thread(target=holders.clear) for holders in of_threads]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert one.num_leases == 0


def test_the_entry_lives_as_long_as_a_view_of_the_mapping() -> None:
    with leased() as one:
        view = one.take()
        one.mapping.close()
        assert not one.ring.readers.poll_deaths()
        del view
        assert len(one.ring.readers.poll_deaths()) == 1
        with pytest.raises(LocalProtocolError, match="closed"):
            one.mapping.when_unmapped(one.returns.close_reader)


# ---- forks


def test_a_lease_that_was_out_at_a_fork_ends_when_parent_and_child_have_let_go() -> None:
    with leased() as one:
        holders = [one.take()]
        ready, go_on = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                signal.alarm(60)
                one.mapping.close()
                os.write(ready[1], b"x")
                os.read(go_on[0], 1)
                holders.clear()  # the last view here: the locks go with it
                os.write(ready[1], b"x")
                os.read(go_on[0], 1)
            os._exit(0)
        assert os.read(ready[0], 1)
        assert one.returns.is_shared
        holders.clear()
        one.mapping.close()
        assert one.ring.readers.poll_deaths() == []
        assert one.num_leases == 1, "the child reads"
        os.write(go_on[1], b"x")
        assert os.read(ready[0], 1)
        assert [event.reader_id for event in one.ring.readers.poll_deaths()] == [one.entry.reader_id]
        assert one.num_leases == 0
        os.write(go_on[1], b"x")
        os.waitpid(pid, 0)
        for fd in (*ready, *go_on):
            os.close(fd)


def test_a_fork_without_a_lease_leaves_the_parent_alone_and_the_child_nothing() -> None:
    with leased() as one:
        target = f"/dev/shm{one.ring.announcement.ctl_name}"

        def descriptors() -> int:
            found = 0
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    found += os.readlink(f"/proc/self/fd/{name}") == target
            return found

        here = descriptors()
        assert in_child(descriptors) < here
        assert not one.returns.is_shared
        holder = one.take()
        del holder
        assert one.num_leases == 0


# ---- interrupts


class Interrupt(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an interrupt inside a finalizer
def test_interrupted_at_any_moment_each_lease_comes_back_once() -> None:
    num_interrupts = 0

    def interrupt(*_: object) -> None:
        nonlocal num_interrupts
        num_interrupts += 1
        raise Interrupt

    with leased() as one:
        former = signal.signal(signal.SIGALRM, interrupt)
        try:
            for turn in range(1000):
                with contextlib.suppress(Interrupt):
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 * (20 + turn % 40))
                    for _ in range(100):  # an interrupt in the middle of a finalizer is lost
                        one.take()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
        assert num_interrupts >= 1000
        gc.collect()
        one.returns.work_off()
        assert one.num_leases == 0
        assert one.entry.taken_bytes == 0


def test_nothing_is_kept_of_what_is_over() -> None:
    with leased() as one:
        returns = weakref.ref(one.returns)
        holder = one.take()
        one.mapping.close()
        del one.returns
        assert returns() is not None
        del holder
        gc.collect()
        assert returns() is None
