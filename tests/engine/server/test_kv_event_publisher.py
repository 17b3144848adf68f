"""The publisher of KV events over real sockets: what every reader gets, and what those get who ask."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from structlog.testing import capture_logs

from mmcached.engine.server.kv_event_publisher import (
    BATCHES_AT_ONCE,
    MAX_ANSWERS,
    MAX_QUESTION_BYTES,
    KVEventPublisher,
    kv_event_publisher_from_config,
)
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.kv_events_config import KVEventsConfig
from mmcached.wire.messages.kv_events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
    KVEventBatch,
)

DEADLINE_S = 30.0
DEADLINE_MS = 30_000
FIRST = 1_000_000_000  # what the clock says, nanoseconds

Context = zmq.Context[zmq.Socket[bytes]]
Frames = list[bytes]


@pytest.fixture
def context() -> Iterator[Context]:
    with zmq.Context() as context:
        yield context


class Bench(Closeable):
    """One publisher on two sockets in a folder, and how to reach it; leave to close all sockets."""

    def __init__(self, context: Context, folder: Path, **config: Any) -> None:
        self.context = context
        self.addresses = f"ipc://{folder}/pub", f"ipc://{folder}/rep"
        self.readers: list[zmq.Socket[bytes]] = []
        self.publisher = KVEventPublisher(
            KVEventsConfig(**config),
            publish_address=self.addresses[0],
            replay_address=self.addresses[1],
            data_parallel_rank=3,
            clock=lambda: FIRST,
        )

    def close(self) -> None:
        self.publisher.close()
        for reader in self.readers:
            reader.close(linger=0)

    def socket(self, kind: int, **options: int) -> zmq.Socket[bytes]:
        reader = self.context.socket(kind)
        self.readers.append(reader)
        for name, value in options.items():
            reader.setsockopt(getattr(zmq, name), value)
        return reader

    def subscriber(self, topic: bytes = b"", **options: int) -> zmq.Socket[bytes]:
        """Return a socket that hears from now on what is published."""
        reader = self.socket(zmq.SUB, **options)
        reader.connect(self.addresses[0])
        reader.setsockopt(zmq.SUBSCRIBE, topic)

        def is_heard() -> bool:
            self.publisher.publish(removal(b"is anybody there"))
            return bool(reader.poll(1))

        self.until(is_heard)
        return reader

    def hear(self, reader: zmq.Socket[bytes], number: int) -> Frames:
        """Return the batch of this number, passing over those before it."""
        while reader.poll(DEADLINE_MS):
            frames = reader.recv_multipart()
            if int.from_bytes(frames[1], "big") >= number:
                return frames
        raise AssertionError(f"batch {number} never came")

    def asker(self, kind: int = zmq.DEALER, **options: int) -> zmq.Socket[bytes]:
        asker = self.socket(kind, **options)
        asker.connect(self.addresses[1])
        return asker

    def ask(self, start: int) -> list[Frames]:
        """Ask for all batches from a number on; return the answer's messages."""
        asker = self.asker()
        asker.send_multipart([b"", packed(start)])
        return self.answer(asker)

    def answer(self, asker: zmq.Socket[bytes]) -> list[Frames]:
        """Serve until an answer is complete; return its messages."""
        messages: list[Frames] = []

        def is_complete() -> bool:
            self.publisher.serve_replay()
            while asker.poll(1):
                messages.append(asker.recv_multipart())
            return bool(messages) and messages[-1][-2] == END_OF_REPLAY

        self.until(is_complete)
        return messages

    def until(self, question: Callable[[], object]) -> None:
        give_up = time.monotonic() + DEADLINE_S
        while not question():
            assert time.monotonic() < give_up, "never so"


@pytest.fixture
def bench(context: Context, run_dir: Path) -> Iterator[Bench]:
    with Bench(context, run_dir, topic="kv@here", buffer_steps=200) as bench:
        yield bench


def removal(digest: bytes) -> list[KVEvent]:
    return [BlockRemoved([digest], "GPU", 0)]


def packed(number: int) -> bytes:
    return number.to_bytes(8, "big")


def digests(payload: bytes) -> list[Any]:
    """Return the digests that a batch of removals is about; none for one that clears."""
    batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
    return [digest for event in batch.events if isinstance(event, BlockRemoved) for digest in event.block_hashes]


# --- live


def test_every_reader_gets_topic_number_and_batch(bench: Bench) -> None:
    readers = [bench.subscriber(b"kv@"), bench.subscriber()]
    number = bench.publisher.next_number
    for digest in (b"a", b"b"):
        bench.publisher.publish(removal(digest))
    for reader in readers:
        for index, digest in enumerate((b"a", b"b")):
            topic, own_number, payload = bench.hear(reader, number + index)
            assert (topic, own_number) == (b"kv@here", packed(number + index))
            batch = msgspec.msgpack.decode(payload, type=KVEventBatch)
            assert batch == KVEventBatch(1.0, removal(digest), 3)


def test_a_reader_that_is_late_costs_nobody_anything(context: Context, run_dir: Path) -> None:
    """Batches beyond the high-water mark are dropped for it; publishing never waits."""
    with Bench(context, run_dir, hwm=10, buffer_steps=10) as bench:
        late = bench.subscriber(RCVHWM=10)
        first = bench.publisher.next_number
        for number in range(2000):
            bench.publisher.publish(removal(packed(number) * 500))
        numbers = []
        while late.poll(200):
            numbers.append(int.from_bytes(late.recv_multipart()[1], "big"))
        assert len(numbers) < 2000
        assert numbers == sorted(numbers)
        assert bench.publisher.next_number == first + 2000


def test_numbers_go_out_of_a_reader_s_integers_as_64_bits(context: Context, run_dir: Path) -> None:
    with Bench(context, run_dir, use_int_block_hashes=True) as bench:
        event = BlockStored([b"\0" * 24 + b"\xff" * 8, bytes(range(32))], b"\1" * 32, [1, 2], 1, None, "GPU", None)
        bench.publisher.publish([event, BlockRemoved([b"\2" * 32], "GPU", 0), AllBlocksCleared()])
        stored, removed, _ = msgspec.msgpack.decode(bench.ask(FIRST + 1)[0][-1], type=KVEventBatch).events
        assert isinstance(stored, BlockStored)
        assert stored.block_hashes == [2**64 - 1, int.from_bytes(range(24, 32), "big")]
        assert stored.parent_block_hash == int.from_bytes(b"\1" * 8, "big")
        assert isinstance(removed, BlockRemoved)
        assert removed.block_hashes == [int.from_bytes(b"\2" * 8, "big")]


# --- replay


def test_a_life_begins_with_the_clock_and_with_nothing_stored(bench: Bench) -> None:
    first, end = bench.ask(0)
    empty, topic, number, payload = first
    assert (empty, topic, number) == (b"", b"kv@here", packed(FIRST))
    assert msgspec.msgpack.decode(payload, type=KVEventBatch).events == [AllBlocksCleared()]
    assert end == [b"", b"", END_OF_REPLAY, b""]


@pytest.mark.parametrize(("start", "wanted"), [(0, 10), (FIRST, 10), (FIRST + 7, 3), (FIRST + 10, 0), (2**64 - 1, 0)])
def test_who_asks_gets_all_from_there_on_and_the_end(bench: Bench, start: int, wanted: int) -> None:
    for number in range(1, 10):
        bench.publisher.publish(removal(packed(FIRST + number)))
    *batches, end = bench.ask(start)
    assert [frames[2] for frames in batches] == [packed(FIRST + 10 - wanted + i) for i in range(wanted)]
    assert all(digests(frames[3]) in ([], [frames[2]]) for frames in batches), "each under its own number"
    assert end[2] == END_OF_REPLAY


def test_a_long_answer_goes_out_in_parts_between_which_others_are_served(bench: Bench) -> None:
    for number in range(1, 200):
        bench.publisher.publish(removal(packed(number)))
    long, short = bench.asker(), bench.asker()
    long.send_multipart([b"", packed(0)])
    short.send_multipart([b"", packed(FIRST + 199)])
    bench.until(bench.publisher.serve_replay)
    assert len(bench.answer(short)) == 2
    assert long.poll(DEADLINE_MS)
    bench.publisher.publish(removal(b"meanwhile"))
    *batches, _ = bench.answer(long)
    numbers = [int.from_bytes(frames[2], "big") for frames in batches]
    assert numbers == [FIRST + i for i in range(201)]
    assert len(numbers) > 3 * BATCHES_AT_ONCE
    assert not bench.publisher.serve_replay()


def test_a_req_socket_gets_the_first_message_of_its_answer(bench: Bench) -> None:
    asker = bench.asker(zmq.REQ)
    asker.send(packed(0))
    bench.until(lambda: bench.publisher.serve_replay() or asker.poll(1))
    topic, number, _ = asker.recv_multipart()
    assert (topic, number) == (b"kv@here", packed(FIRST))


@pytest.mark.parametrize(
    "question", [[], [packed(0)], [b"", b"short"], [b"x", packed(0)], [b"", packed(0), b""], [b""] * 9], ids=str
)
def test_what_is_no_question_is_passed_over(bench: Bench, question: Frames) -> None:
    asker = bench.asker()
    asker.send_multipart(question or [b""])
    asker.send_multipart([b"", packed(0)])
    with capture_logs() as logs:
        assert len(bench.answer(asker)) == 2
    assert [entry["event"] for entry in logs] == ["invalid replay request for KV events"]


def test_a_reader_that_takes_no_answer_holds_up_nobody(context: Context, run_dir: Path) -> None:
    with Bench(context, run_dir, buffer_steps=3000) as bench:
        for number in range(1, 3000):
            bench.publisher.publish(removal(packed(FIRST + number) * 500))
        stuck = bench.asker(RCVHWM=1)
        stuck.send_multipart([b"", packed(0)])
        bench.until(bench.publisher.serve_replay)
        bench.until(lambda: not bench.publisher.serve_replay())  # its queue is full: nothing more can be done at once
        other = bench.asker()
        other.send_multipart([b"", packed(FIRST + 2999)])
        assert len(bench.answer(other)) == 2
        *batches, _ = bench.answer(stuck)
        assert [frames[2] for frames in batches] == [packed(FIRST + i) for i in range(3000)], (
            "and then it has all of it"
        )


def test_a_reader_that_has_gone_is_forgotten(context: Context, run_dir: Path) -> None:
    with Bench(context, run_dir, buffer_steps=3000) as bench:
        for _ in range(3000):
            bench.publisher.publish(removal(b"x" * 4000))
        gone = bench.asker(RCVHWM=1, LINGER=0)
        gone.send_multipart([b"", packed(0)])
        bench.until(bench.publisher.serve_replay)
        bench.until(lambda: not bench.publisher.serve_replay())
        assert bench.publisher.num_answers
        gone.close()
        bench.until(lambda: bench.publisher.serve_replay() or not bench.publisher.num_answers)


# --- where


def test_a_successor_binds_where_its_predecessor_was(context: Context, run_dir: Path) -> None:
    with Bench(context, run_dir):
        pass
    with Bench(context, run_dir) as bench:
        assert len(bench.ask(0)) == 2


def test_a_publisher_that_closes_leaves_the_names_to_its_successor(context: Context, run_dir: Path) -> None:
    first = Bench(context, run_dir)
    with Bench(context, run_dir) as second:
        first.close()
        assert len(second.ask(0)) == 2
    assert not list(run_dir.iterdir())


@pytest.mark.parametrize("field", ["endpoint", "replay_endpoint"])
def test_an_address_that_cannot_be_bound_is_an_error_that_names_it(context: Context, run_dir: Path, field: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        config = KVEventsConfig(enable_kv_cache_events=True, **{field: address})  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as caught:
            kv_event_publisher_from_config(ServiceConfig(kv_events=config), run_dir, 0)
    assert (caught.value.details["field"], caught.value.details["value"]) == (f"kv_events.{field}", address)


# ---- what readers may cost


@pytest.mark.parametrize("which", [0, 1])
def test_who_sends_more_than_a_question_is_disconnected_before_it_is_read(
    context: Context, run_dir: Path, which: int
) -> None:
    with Bench(context, run_dir) as bench:
        stranger = bench.socket(zmq.DEALER if which else zmq.XSUB)
        monitor = stranger.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        stranger.connect(bench.addresses[which])
        stranger.send(b"\1" + bytes(MAX_QUESTION_BYTES))
        assert monitor.poll(DEADLINE_MS), "it may send what it likes"
        stranger.disable_monitor()
        monitor.close()
        assert bench.ask(0)


def test_what_is_kept_is_bounded_in_bytes(context: Context, run_dir: Path) -> None:
    with Bench(context, run_dir, buffer_mb=1) as bench:
        for _ in range(40):
            bench.publisher.publish(removal(bytes(100_000)))
        *batches, _ = bench.ask(0)
        assert len(batches) == 10
        assert int.from_bytes(batches[-1][-2], "big") == bench.publisher.next_number - 1


def test_questions_of_many_readers_are_answered_some_at_a_time(
    context: Context, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call sends one part of one answer, so that no number of readers holds up a step."""
    with Bench(context, run_dir) as bench:
        for _ in range(2 * BATCHES_AT_ONCE):
            bench.publisher.publish(removal(b"x"))
        askers = [bench.asker() for _ in range(MAX_ANSWERS + 20)]
        for asker in askers:
            asker.send_multipart([b"", packed(0)])
        sends = []
        send = bench.publisher.replay_socket.send_multipart

        def counted(parts: list[bytes], *flags: Any) -> None:
            sends.append(parts[0])
            send(parts, *flags)

        monkeypatch.setattr(bench.publisher.replay_socket, "send_multipart", counted)

        def are_many_waiting() -> bool:
            sends.clear()
            bench.publisher.serve_replay()
            assert len(sends) <= BATCHES_AT_ONCE + 1
            assert len(set(sends)) <= 1
            assert bench.publisher.num_answers <= MAX_ANSWERS
            return not bench.publisher.num_answers

        bench.until(lambda: bool(bench.publisher.serve_replay()))
        bench.until(are_many_waiting)


def test_what_waits_for_a_slow_reader_is_bounded_in_bytes(context: Context, run_dir: Path) -> None:
    config = ServiceConfig(
        max_num_batched_tokens=65_536, kv_events=KVEventsConfig(enable_kv_cache_events=True, buffer_mb=64)
    )
    publisher = kv_event_publisher_from_config(config, run_dir, 0)
    mark = int(publisher.publish_socket.getsockopt(zmq.SNDHWM))
    publisher.close()
    prompt = list(range(100_000, 100_000 + config.max_num_batched_tokens))
    digests: list[BlockHash] = [bytes(32)] * (len(prompt) // config.block_size)
    stored = BlockStored(digests, None, prompt, config.block_size, None, "GPU", None)
    batch = len(msgspec.msgpack.encode(KVEventBatch(0.0, [stored, BlockRemoved(digests, "GPU", 0)], 0)))
    assert mark * batch <= 64 << 20
    assert mark > 50, "as many as that are worth having"
