"""Both ends of the ring as the service uses them: leases are granted at send, items read in place; the engine gives the
leases back, and is asked when descriptors were lost.

The state machine plays frontend and engines. For every lease it knows where it is: in a queue, held, or lost; so the
ring's count is compared after each step, not only at the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from mmcached.shm import ObjectStoreWriter
from mmcached.wire.errors import MmcachedError
from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.parts import Barrier
from tests.contracts import content
from tests.house.drawing import examples
from tests.pairs.library_pairs import expected
from tests.pairs.shm_service import WORKER_EPOCH, Add, Answer, Engine, Frontend, Link, Missed, Request, Running

NUM_ENGINES = 2
ENGINES = st.integers(0, NUM_ENGINES - 1)
KEYS = st.integers(0, 11).map(str)
REQUESTS = st.lists(KEYS, max_size=4)


class Service(RuleBasedStateMachine):
    """What frontend and engines do with a ring."""

    engine_type: type[Engine] = Engine
    frontend_type: type[Frontend] = Frontend

    def __init__(self) -> None:
        super().__init__()
        self.frontend = self.frontend_type(NUM_ENGINES)
        self.engines = [self.start_engine() for _ in range(NUM_ENGINES)]
        self.links = [Link() for _ in range(NUM_ENGINES)]
        self.waiting: dict[int, Request] = {}
        self.lost_seqs: list[set[int]] = [set() for _ in range(NUM_ENGINES)]
        self.last_seqs = [0] * NUM_ENGINES
        self.barriers: list[Barrier | None] = [None] * NUM_ENGINES
        self.survivors: list[Running] = []
        self.num_requests = 0

    # ---- P0

    @rule(engine=ENGINES, keys=REQUESTS)
    def request(self, engine: int, keys: list[str]) -> None:
        self.num_requests += 1
        request = Request(self.num_requests, engine, keys)
        self.waiting[request.number] = request
        self.send(request)

    def send(self, request: Request) -> None:
        items = self.frontend.resolve(request.keys)
        message = self.frontend.message(request, self.engines[request.engine], items)
        self.links[request.engine].to_engine.append(message)
        self.frontend.cache.release()

    @rule(engine=ENGINES, keys=REQUESTS, is_before_grant=st.booleans())
    def is_not_sent(self, engine: int, keys: list[str], is_before_grant: bool) -> None:
        """Its user has gone meanwhile, or the engine's queue is full."""
        items = self.frontend.resolve(keys)
        if not is_before_grant:
            message = self.frontend.message(Request(0, engine, keys), self.engines[engine], items)
            self.undo(message, self.engines[engine])
        self.frontend.cache.release()

    def undo(self, message: Add, engine: Engine) -> None:
        self.frontend.undo(message, engine)

    @rule(engine=ENGINES)
    def ask(self, engine: int) -> None:
        """The reader has leases out although its queue has been idle, or it has reported a gap; also once more."""
        barrier = self.frontend.ring.open_barrier(self.engines[engine].entry.reader_id)
        if barrier is not None:
            self.barriers[engine] = barrier
            self.links[engine].to_engine.append(barrier)

    @precondition(lambda self: any(link.to_frontend for link in self.links))
    @rule(data=st.data())
    def frontend_reads(self, data: st.DataObject) -> None:
        engine = data.draw(st.sampled_from([n for n, link in enumerate(self.links) if link.to_frontend]))
        self.read_one(engine)

    def read_one(self, engine: int) -> None:
        message = self.links[engine].to_frontend.popleft()
        if isinstance(message, Missed):
            self.missed(message)
        else:
            self.answered(engine, message)

    def missed(self, message: Missed) -> None:
        """Send a request again, unless its user has gone: nobody hears of a miss."""
        if message.request.number in self.waiting:
            message.request.num_resends += 1
            self.send(message.request)

    def answered(self, engine: int, message: Answer) -> None:
        barrier, reader_id = message.barrier, self.engines[engine].entry.reader_id
        num_lost = self.frontend.ring.reconcile(reader_id, barrier.incarnation, barrier.barrier_id, message.received)
        is_last = barrier is self.barriers[engine]
        assert num_lost == (len(self.lost_seqs[engine]) if is_last else None), "exactly what was lost, once"
        if is_last:
            self.barriers[engine] = None
            self.lost_seqs[engine].clear()

    @rule()
    def clear(self) -> None:
        self.frontend.cache.clear()

    # ---- P1

    @precondition(lambda self: any(link.to_engine for link in self.links))
    @rule(data=st.data())
    def engine_reads(self, data: st.DataObject) -> None:
        self.deliver(data.draw(st.sampled_from([n for n, link in enumerate(self.links) if link.to_engine])))

    def deliver(self, engine: int) -> None:
        message = self.links[engine].to_engine.popleft()
        if isinstance(message, Add):
            self.deliver_request(engine, message)
            return
        received = self.engines[engine].answer(message)
        assert (received is None) == (message.incarnation != self.engines[engine].entry.incarnation)
        if received is not None:
            self.last_seqs[engine] = max(self.last_seqs[engine], message.last_seq)
            self.links[engine].to_frontend.append(Answer(message, received))

    def deliver_request(self, number: int, message: Add) -> None:
        engine = self.engines[number]
        is_ours = message.life == engine.life
        if is_ours and message.leases:
            handle, lease = message.leases[0]
            lost = {seq for seq in self.lost_seqs[number] if self.last_seqs[number] < seq < lease.seq}
            assert engine.entry.has_gap_before(handle, lease) == bool(lost), "a grant that is undone leaves no gap"
            self.last_seqs[number] = message.leases[-1][1].seq
        missed = engine.add(message)
        assert bool(missed) == (bool(message.leases) and not is_ours), "only a restart costs a resend"
        if missed:
            self.links[number].to_frontend.append(Missed(message.request, missed))
        elif message.request.number not in self.waiting:
            engine.end(engine.running[-1])

    @precondition(lambda self: any(engine.running for engine in self.engines))
    @rule(data=st.data(), is_read_on=st.booleans())
    def finish(self, data: st.DataObject, is_read_on: bool) -> None:
        """A request is done, or its user has gone while a worker reads on for it."""
        engine = data.draw(st.sampled_from([engine for engine in self.engines if engine.running]))
        running = data.draw(st.sampled_from(range(len(engine.running))))
        self.finish_one(engine, running, is_read_on=is_read_on)

    def finish_one(self, engine: Engine, index: int, *, is_read_on: bool = False) -> None:
        running = engine.running[index]
        self.waiting.pop(running.request.number, None)
        engine.end(running)
        if not is_read_on:
            running.items.clear()
            del engine.running[index]
        engine.flush()

    # ---- what goes wrong

    @precondition(lambda self: bool(self.waiting))
    @rule(data=st.data())
    def user_goes(self, data: st.DataObject) -> None:
        """Before its request has arrived, between miss and resend, or while it is computed."""
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[number]
        for engine in self.engines:
            for running in engine.running:
                if running.request.number == number:
                    engine.end(running)

    @precondition(lambda self: any(link.to_engine for link in self.links))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A message disappears between two living processes; its user's deadline passes."""
        engine = data.draw(st.sampled_from([n for n, link in enumerate(self.links) if link.to_engine]))
        queue = self.links[engine].to_engine
        index = data.draw(st.sampled_from(range(len(queue))))
        lost = queue[index]
        del queue[index]
        if isinstance(lost, Add):
            self.waiting.pop(lost.request.number, None)
            if lost.life == self.engines[engine].life:
                self.lost_seqs[engine] |= {lease.seq for _, lease in lost.leases}

    @rule(engine=ENGINES, is_queue_lost=st.booleans())
    def restart_engine(self, engine: int, is_queue_lost: bool) -> None:
        """What it computed ends with an error that says so; what is on the way to it may arrive at its successor."""
        self.end_engine(engine)
        if is_queue_lost:
            self.drop_queue(engine)
        self.engines[engine] = self.start_engine()
        self.frontend.ring.poll_deaths()

    @rule(are_queues_lost=st.booleans(), do_views_live=st.booleans())
    def restart_frontend(self, are_queues_lost: bool, do_views_live: bool) -> None:
        """A new ring; users ask again. A worker that still reads in the old one reads what was there."""
        if do_views_live:
            self.survivors = [running for engine in self.engines for running in engine.running]
        former, self.frontend = self.frontend, self.frontend_type(NUM_ENGINES)
        for engine in range(NUM_ENGINES):
            self.end_engine(engine, is_dead=not do_views_live)
            if are_queues_lost:
                self.drop_queue(engine)
            self.engines[engine] = self.start_engine()
        former.close()

    @rule()
    def survivors_end(self) -> None:
        self.survivors.clear()

    def start_engine(self) -> Engine:
        engine = self.engine_type(self.frontend.ring.announcement)
        assert self.frontend.ring.attach(engine.entry.reader_id, engine.entry.incarnation)
        return engine

    def end_engine(self, number: int, *, is_dead: bool = True) -> None:
        engine = self.engines[number]
        for running in engine.running:
            self.waiting.pop(running.request.number, None)
            if is_dead:
                running.items.clear()
        engine.running = []
        engine.leases.forget_all()
        engine.close()
        for message in self.links[number].to_frontend:
            if isinstance(message, Missed):
                self.waiting.pop(message.request.number, None)
        self.links[number].to_frontend.clear()
        self.lost_seqs[number].clear()
        self.last_seqs[number] = 0
        self.barriers[number] = None

    def drop_queue(self, engine: int) -> None:
        for message in self.links[engine].to_engine:
            if isinstance(message, Add):
                self.waiting.pop(message.request.number, None)
        self.links[engine].to_engine.clear()

    # ---- what holds

    @invariant()
    def what_is_read_is_what_was_sent(self) -> None:
        for running in (*self.survivors, *(running for engine in self.engines for running in engine.running)):
            assert list(map(content, running.items)) == expected(running.request.keys)

    @invariant()
    def the_books_agree(self) -> None:
        self.frontend.check_integrity()
        for engine in self.engines:
            engine.leases.check_integrity()

    @invariant()
    def every_lease_is_somewhere(self) -> None:
        queued = sum(
            len(message.leases)
            for link, engine in zip(self.links, self.engines, strict=True)
            for message in link.to_engine
            if isinstance(message, Add) and message.life == engine.life
        )
        held = sum(len(engine.leases) for engine in self.engines)
        assert self.frontend.ring.stats().leases == queued + held + sum(map(len, self.lost_seqs))

    def teardown(self) -> None:
        """Serve all that waits, ask for what was lost: then nothing is out, and everything is served once more."""
        try:
            self.drain()
            for number in range(12):
                for engine in range(NUM_ENGINES):
                    self.request(engine, [str(number), str((number + 3) % 12)])
            self.drain()
            assert not self.waiting
        finally:
            self.close()

    def drain(self) -> None:
        for _ in range(4):
            for number in range(NUM_ENGINES):
                link, engine = self.links[number], self.engines[number]
                while link.to_engine or link.to_frontend:
                    while link.to_engine:
                        self.deliver(number)
                        self.what_is_read_is_what_was_sent()
                    while engine.running:
                        self.finish_one(engine, 0)
                    while link.to_frontend:
                        self.read_one(number)
                while engine.running:
                    self.finish_one(engine, 0)
                self.ask(number)
        self.the_books_agree()
        assert self.frontend.ring.stats().leases == 0

    def close(self) -> None:
        self.survivors.clear()
        for engine in self.engines:
            for running in engine.running:
                running.items.clear()
            engine.close()
        self.frontend.close()


TestService = Service.TestCase
TestService.settings = settings(max_examples=examples(40), stateful_step_count=40)


# ---- the machine sees each of these faults


class KeepsWhatWasRefused(Service):
    def undo(self, message: Add, engine: Engine) -> None:
        """The message was not queued, but the grants stay."""


class NobodyAsks(Service):
    def ask(self, engine: int) -> None:
        """What was lost stays lost."""


class TakesAnyLife(Engine):
    def receive(self, handle: Handle, lease: LeaseId) -> bool:
        self.entry.receive(handle, lease)
        return True


class CountsNothing(Engine):
    """Looks whether a descriptor is its own, but does not count it."""

    def receive(self, handle: Handle, lease: LeaseId) -> bool:
        return self.entry.owns(handle, lease)


class GivesBackUnread(Engine):
    """Once the request is over, whoever still reads for it."""

    def end(self, running: Running) -> None:
        self.leases.worker_died(WORKER_EPOCH)
        super().end(running)


class GivesBackTwice(Engine):
    def flush(self) -> None:
        for handle in [handle for message in list(self._released) if (handle := self.handle_of(message[1]))]:
            self.entry.give_back(handle)
        super().flush()

    def handle_of(self, seq: int) -> Handle | None:
        held = self.leases._held.get(seq)
        return None if held is None else held.handle


class PinsNothing(ObjectStoreWriter):
    """Lets a request's own items evict what it is about to send."""

    def touch(self, key: str) -> None:
        pass


class FrontendThatPinsNothing(Frontend):
    store_type = PinsNothing


def with_engine(kind: type[Engine]) -> type[Service]:
    return type("Broken", (Service,), {"engine_type": kind})


FAULTS: dict[str, type[Service]] = {
    "a refused request keeps its leases": KeepsWhatWasRefused,
    "nobody asks for what was lost": NobodyAsks,
    "another life's descriptors are used": with_engine(TakesAnyLife),
    "arrivals are not counted": with_engine(CountsNothing),
    "leases go back before reading ends": with_engine(GivesBackUnread),
    "leases go back twice": with_engine(GivesBackTwice),
    "nothing is pinned": type("Broken", (Service,), {"frontend_type": FrontendThatPinsNothing}),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_machine_sees(fault: type[Service]) -> None:
    few = settings(
        max_examples=2000,  # stops at the first that fails
        stateful_step_count=80,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with pytest.raises((AssertionError, KeyError, MmcachedError)):
        run_state_machine_as_test(fault, settings=few)


# ---- examples


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.teardown()


def held_by(engine: Engine) -> list[list[str]]:
    return [running.request.keys for running in engine.running]


def test_a_descriptor_for_a_former_life_costs_one_resend(service: Service) -> None:
    """The engine that it was leased to is gone: its successor misses, is sent a lease of its own, and reads."""
    service.request(0, ["0", "1", "0"])
    service.restart_engine(0, is_queue_lost=False)
    service.deliver(0)
    assert held_by(service.engines[0]) == []
    puts = service.frontend.ring.stats().puts
    service.read_one(0)
    service.deliver(0)
    assert held_by(service.engines[0]) == [["0", "1", "0"]]
    assert service.waiting[1].num_resends == 1
    assert service.frontend.ring.stats().puts == puts, "nothing was processed or written again"
    service.every_lease_is_somewhere()


def test_a_handle_of_a_former_ring_costs_one_resend_and_its_views_live_on(service: Service) -> None:
    service.request(0, ["0"])
    service.deliver(0)
    service.request(0, ["1"])
    service.restart_frontend(are_queues_lost=False, do_views_live=True)
    service.deliver(0)
    service.read_one(0)
    service.deliver(0)
    assert held_by(service.engines[0]) == [["1"]]
    assert service.waiting[2].num_resends == 1
    for number in range(2, 12):
        service.request(1, [str(number)])
    service.what_is_read_is_what_was_sent()
    assert [running.request.keys for running in service.survivors] == [["0"]]


def test_a_lost_descriptor_costs_its_bytes_until_somebody_asks(service: Service) -> None:
    service.request(0, ["0", "3"])
    service.links[0].to_engine.clear()
    service.waiting.clear()
    service.lost_seqs[0] = {1, 2}
    assert service.frontend.ring.stats().leases == 2
    service.ask(0)
    service.request(0, ["1"])
    (_, message) = service.links[0].to_engine
    assert isinstance(message, Add)
    assert message.leases == [], "while the reader is asked, items are copied out for it"
    service.deliver(0)
    service.read_one(0)
    assert service.frontend.ring.stats().leases == 0
    service.deliver(0)
    assert held_by(service.engines[0]) == [["1"]]


def test_both_engines_read_the_same_bytes_and_each_gives_back_its_own_lease(service: Service) -> None:
    for engine in (0, 1):
        service.request(engine, ["4"])
        service.deliver(engine)
    assert (service.frontend.ring.stats().puts, service.frontend.ring.stats().leases) == (1, 2)
    service.finish_one(service.engines[0], 0)
    assert service.frontend.ring.stats().leases == 1
    for number in range(12):
        service.request(0, [str(number)])
        service.deliver(0)
        service.finish_one(service.engines[0], 0)
    service.what_is_read_is_what_was_sent()
    service.finish_one(service.engines[1], 0)
    assert service.frontend.ring.stats().leases == 0


def test_clear_with_requests_in_flight_takes_nothing_from_them(service: Service) -> None:
    service.request(0, ["0", "1"])
    service.request(0, ["0"])
    service.deliver(0)
    service.clear()
    for number in range(2, 12):
        service.request(1, [str(number)])
        service.deliver(1)
        service.finish_one(service.engines[1], 0)
    service.deliver(0)
    service.what_is_read_is_what_was_sent()
    assert held_by(service.engines[0]) == [["0", "1"], ["0"]]
    assert service.waiting[2].num_resends == 0
