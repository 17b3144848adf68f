"""`KVEventSubscriber` over real sockets: with the engine's own publisher, and with one that loses and lies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from mmcached.client.kv_events.order import ReceivedBatch
from mmcached.client.kv_events.subscriber import KVEventSubscriber
from mmcached.engine.server.kv_event_publisher import KVEventPublisher
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, DeadlineExceeded
from mmcached.wire.kv_events_config import KVEventsConfig
from mmcached.wire.messages.kv_events import END_OF_REPLAY, AllBlocksCleared, BlockRemoved, KVEvent, KVEventBatch
from mmcached.wire.paths import RunDir
from tests.clock import Clock

DEADLINE_S = 30.0

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as context:
        yield context


def addresses(run_dir: Path) -> tuple[str, str]:
    return KVEventsConfig().addresses(run_dir)


def removal(name: int) -> list[KVEvent]:
    return [BlockRemoved([name], "GPU", 0)]


def payload(number: int) -> bytes:
    return msgspec.msgpack.encode(KVEventBatch(float(number), removal(number), 0))


def packed(number: int) -> bytes:
    return number.to_bytes(8, "big")


def names(received: list[ReceivedBatch]) -> list[object]:
    return [event.block_hashes[0] for each in received for event in each.events if isinstance(event, BlockRemoved)]


class FakePublisher(Closeable):
    """The two sockets of a publisher; a test says what is sent, and serves what is asked."""

    def __init__(self, context: Context, *addresses: str) -> None:
        self.pub, self.router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        for own_socket, address in zip((self.pub, self.router), addresses, strict=True):
            own_socket.bind(address)
        self.topic = b""
        self.kept: dict[int, bytes] = {}
        self.questions: list[int] = []
        self.has_topic = True

    def send(self, number: int, batch: bytes | None = None, *, is_lost: bool = False, is_kept: bool = True) -> None:
        batch = payload(number) if batch is None else batch
        if is_kept:
            self.kept[number] = batch
        if not is_lost:
            self.pub.send_multipart([self.topic, packed(number), batch])

    def serve(self) -> None:
        while self.router.poll(0):
            reader, empty, start = self.router.recv_multipart()
            self.questions.append(int.from_bytes(start, "big"))
            topic = [b""] if self.has_topic else []
            for number in sorted(number for number in self.kept if number >= self.questions[-1]):
                self.router.send_multipart([reader, empty, *topic, packed(number), self.kept[number]])
            self.router.send_multipart([reader, empty, *topic, END_OF_REPLAY, b""])

    def await_reader(self) -> None:
        """Return when a subscriber is connected: whatever is sent from now on reaches it."""
        assert self.pub.poll(round(1000 * DEADLINE_S)), "nobody subscribes"
        assert self.pub.recv() == b"\x01" + self.topic

    def receive(self, subscriber: KVEventSubscriber, num_batches: int) -> list[ReceivedBatch]:
        return receive(subscriber, num_batches, self.serve)

    def close(self) -> None:
        self.pub.close(linger=0)
        self.router.close(linger=0)


def receive(subscriber: KVEventSubscriber, num_batches: int, serve: Callable[[], object]) -> list[ReceivedBatch]:
    """Let the other end serve until so many batches have come."""
    give_up = time.monotonic() + DEADLINE_S
    received: list[ReceivedBatch] = []
    while len(received) < num_batches:
        serve()
        received += subscriber.batches(timeout_s=0.01)
        assert time.monotonic() < give_up, f"only {len(received)} batches"
    return received


@pytest.fixture
def fake(context: Context, run_dir: Path) -> Iterator[FakePublisher]:
    with FakePublisher(context, *addresses(run_dir)) as fake:
        yield fake


def listening(fake: FakePublisher, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> KVEventSubscriber:
    """Return a subscriber that has got batch 1."""
    subscriber = KVEventSubscriber(*addresses(run_dir), clock=clock)
    fake.await_reader()
    fake.send(1)
    assert fake.receive(subscriber, 1)[0].number == 1
    return subscriber


# --- with the engine's publisher


def publisher_of(context: Context, run_dir: Path, **config: object) -> KVEventPublisher:
    publish, replay = addresses(run_dir)
    settings = KVEventsConfig(**config)  # type: ignore[arg-type]
    return KVEventPublisher(context, settings, publish_address=publish, replay_address=replay)


def test_what_was_published_before_and_after_comes_in_order(context: Context, run_dir: Path) -> None:
    publisher = publisher_of(context, run_dir)
    try:
        for name in range(300):
            publisher.publish(removal(name))
        with KVEventSubscriber(*addresses(run_dir)) as subscriber:
            received = receive(subscriber, 301, publisher.serve_replay)
            for name in range(300, 600):
                publisher.publish(removal(name))
            received += receive(subscriber, 300, publisher.serve_replay)
            assert subscriber.num_lost_track == 0
        assert received[0].events == [AllBlocksCleared()]
        assert [each.must_forget for each in received] == [True] + [False] * 600
        assert names(received) == list(range(600))
    finally:
        publisher.close()


def test_after_a_restart_everything_is_forgotten_and_told_anew(context: Context, run_dir: Path) -> None:
    with KVEventSubscriber(*addresses(run_dir)) as subscriber:
        for life, has_to_forget in ((1, False), (2, True)):
            publisher = publisher_of(context, run_dir)
            try:
                publisher.publish(removal(life))
                cleared, told = receive(subscriber, 2, publisher.serve_replay)
                assert cleared.must_forget
                assert names([told]) == [life]
                assert subscriber.num_lost_track == has_to_forget
            finally:
                publisher.close()


def test_a_topic_is_what_others_are_not_heard_by(context: Context, run_dir: Path) -> None:
    publisher = publisher_of(context, run_dir, topic="kv@one")
    publish, _ = addresses(run_dir)
    try:
        with KVEventSubscriber(publish, topic="kv@") as subscriber, KVEventSubscriber(publish, topic="kv@two") as other:
            publisher_speaks = iter(range(10_000))
            received = receive(subscriber, 2, lambda: publisher.publish(removal(next(publisher_speaks))))
            assert names(received)
            with pytest.raises(DeadlineExceeded):
                other.next_batch(0.0)
    finally:
        publisher.close()


# --- what goes wrong


def test_what_was_lost_on_the_way_is_asked_for(fake: FakePublisher, run_dir: Path) -> None:
    with listening(fake, run_dir) as subscriber:
        for number in (2, 3):
            fake.send(number, is_lost=True)
        fake.send(4)
        received = fake.receive(subscriber, 3)
        assert names(received) == [2, 3, 4]
        assert not any(each.must_forget for each in received)
        assert fake.questions[-1] == 2


def test_what_is_not_kept_any_more_means_to_forget(fake: FakePublisher, run_dir: Path) -> None:
    with listening(fake, run_dir) as subscriber:
        fake.send(2, is_lost=True, is_kept=False)
        fake.send(3, is_lost=True)
        fake.send(4)
        received = fake.receive(subscriber, 2)
        assert [(each.number, each.must_forget) for each in received] == [(3, True), (4, False)]
        assert subscriber.num_lost_track == 1


def test_silence_is_looked_into(fake: FakePublisher, run_dir: Path) -> None:
    """The last batch is lost, and no other comes that would show it."""
    clock = Clock(tick_s=0.001)
    with listening(fake, run_dir, clock) as subscriber:
        fake.send(2, is_lost=True)
        give_up = time.monotonic() + DEADLINE_S
        while (received := list(subscriber.batches(timeout_s=0.0))) == []:
            clock.now += 0.5
            fake.serve()
            assert time.monotonic() < give_up
        assert names(received) == [2]
        assert not received[0].must_forget


def test_an_answer_that_does_not_come_is_not_waited_for(fake: FakePublisher, run_dir: Path) -> None:
    """And when it comes late, it is not taken for the answer to another question."""
    clock = Clock(tick_s=0.001)
    with listening(fake, run_dir, clock) as subscriber:
        received: list[ReceivedBatch] = []
        give_up = time.monotonic() + DEADLINE_S

        def receive_until(question: Callable[[], object], step_s: float = 0.0) -> None:
            while not question():
                received.extend(subscriber.batches(timeout_s=0.0))
                clock.now += step_s
                assert time.monotonic() < give_up, received

        fake.send(2, is_lost=True)
        fake.send(3)
        receive_until(lambda: fake.router.poll(1))
        late, *_ = fake.router.recv_multipart()
        fake.send(4, is_lost=True)
        fake.send(5)
        fake.pub.send_multipart([b"", b"no number"])
        receive_until(lambda: subscriber.num_unreadable)  # and so what came before it
        assert received == []
        receive_until(lambda: received, step_s=1.0)
        receive_until(lambda: fake.router.poll(1))
        fake.router.send_multipart([late, b"", b"", END_OF_REPLAY, b""])
        received += fake.receive(subscriber, 2)
        assert [(each.number, each.must_forget) for each in received] == [(3, True), (4, False), (5, False)]


def test_an_answer_without_topics_is_understood(fake: FakePublisher, run_dir: Path) -> None:
    fake.has_topic = False
    with listening(fake, run_dir) as subscriber:
        fake.send(2, is_lost=True)
        fake.send(3)
        assert names(fake.receive(subscriber, 2)) == [2, 3]


def test_what_cannot_be_read_is_counted_and_what_follows_means_to_forget(fake: FakePublisher, run_dir: Path) -> None:
    with listening(fake, run_dir) as subscriber:
        fake.pub.send_multipart([b"", b"no number"])
        fake.pub.send_multipart([b"", b"short", payload(2)])
        fake.send(2, b"\xc1 no batch")
        fake.send(3)
        (received,) = fake.receive(subscriber, 1)
        assert (received.number, received.must_forget) == (3, True)
        assert subscriber.num_unreadable == 3


def test_without_anybody_to_ask_a_gap_means_to_forget(fake: FakePublisher, run_dir: Path) -> None:
    with KVEventSubscriber(addresses(run_dir)[0]) as subscriber:
        fake.await_reader()
        fake.send(1)
        fake.send(3)
        assert [(each.number, each.must_forget) for each in fake.receive(subscriber, 2)] == [(1, True), (3, True)]
        assert fake.questions == []


# --- deadlines, ends, where


@pytest.mark.parametrize("timeout_s", [0.0, 0.05])
def test_nothing_is_waited_for_without_a_deadline(run_dir: Path, timeout_s: float) -> None:
    """Also where nobody is."""
    with KVEventSubscriber(*addresses(run_dir)) as subscriber:
        before = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            subscriber.next_batch(timeout_s)
        assert time.monotonic() - before >= timeout_s
        assert list(subscriber.batches(timeout_s)) == []


def test_closing_twice_is_closing_once(run_dir: Path) -> None:
    subscriber = KVEventSubscriber(*addresses(run_dir))
    subscriber.close()
    subscriber.close()


def test_an_address_that_is_none_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError) as caught:
        KVEventSubscriber("tcp://nowhere")
    assert (caught.value.details["field"], caught.value.details["value"]) == ("endpoint", "tcp://nowhere")


def test_a_service_says_where_it_publishes(context: Context, run_dir: Path) -> None:
    directory = RunDir(run_dir)
    with pytest.raises(ConfigError, match="cannot be read"):
        KVEventSubscriber.of_service(run_dir)
    ServiceConfig().save(directory.config)
    with pytest.raises(ConfigError, match="enable_kv_cache_events"):
        KVEventSubscriber.of_service(run_dir)
    ServiceConfig(kv_events=KVEventsConfig(enable_kv_cache_events=True)).save(directory.config)
    publisher = publisher_of(context, run_dir)
    try:
        with KVEventSubscriber.of_service(run_dir) as subscriber:
            (received,) = receive(subscriber, 1, publisher.serve_replay)
            assert received.events == [AllBlocksCleared()]
    finally:
        publisher.close()


def test_every_interface_is_reached_here(context: Context, run_dir: Path) -> None:
    with FakePublisher(context, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*") as fake:
        fake.topic = b"kv"
        bound = (fake.pub.getsockopt_string(zmq.LAST_ENDPOINT), fake.router.getsockopt_string(zmq.LAST_ENDPOINT))
        endpoint, replay_endpoint = (address.replace("127.0.0.1", "*") for address in bound)
        config = KVEventsConfig(
            enable_kv_cache_events=True, endpoint=endpoint, replay_endpoint=replay_endpoint, topic="kv"
        )
        ServiceConfig(kv_events=config).save(RunDir(run_dir).config)
        with KVEventSubscriber.of_service(run_dir) as subscriber:
            fake.await_reader()
            fake.send(1, is_lost=True)
            fake.send(2)
            assert names(fake.receive(subscriber, 2)) == [1, 2]
            assert subscriber.num_replayed
