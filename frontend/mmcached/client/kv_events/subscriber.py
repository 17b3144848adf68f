"""Subscriber of an engine's KV events, for routers that send requests to the engine whose prefix cache hits.

Batches come live and in order. Missed batches (slow or lost connection) are asked for; so are batches published
earlier,
and, after a silence, whether any are missing: so a reader is not outdated for long without notice. Batches that the
publisher no longer keeps, and a restart of it, are reported by `must_forget`.

Reads vLLM's KV events as well: the format is the same. Every wait has a deadline, and there is no thread; one thread at
a time uses a subscriber.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import zmq

from mmcached.client.kv_events.order import BatchOrder, ReceivedBatch
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, DeadlineExceeded
from mmcached.wire.messages.kv_events import END_OF_REPLAY, NUMBER_BYTES, KVEventBatch
from mmcached.wire.paths import RunDir, default_run_dir

CHECK_INTERVAL_S = 1.0
"""Seconds of silence after which the publisher is asked whether batches are missing."""
ANSWER_TIMEOUT_S = 5.0
"""Seconds without progress after which an answer is given up."""
RECEIVE_HIGH_WATER_MARK = 10_000
MAX_BATCH_BYTES = 16 << 20
"""Maximum size of a batch; a peer that sends more is disconnected."""
MESSAGES_AT_ONCE = 256


class KVEventSubscriber(Closeable):
    """Receives the KV events that one engine publishes.

    >>> with KVEventSubscriber.of_service("/run/mmcached") as subscriber:            # doctest: +SKIP
    ...     for received in subscriber.batches(timeout_s=60.0):
    ...         if received.must_forget:
    ...             known.clear()
    ...         for event in received.events:
    ...             match event:
    ...                 case BlockStored():
    ...                     known.update((event.group_idx, digest) for digest in event.block_hashes)
    ...                 case BlockRemoved():
    ...                     known.difference_update((event.group_idx, digest) for digest in event.block_hashes)
    ...                 case AllBlocksCleared():
    ...                     known.clear()

    Args:
        endpoint: Address at which the engine publishes, as a reader reaches it: `tcp://HOST:PORT`, `ipc://PATH`.
        replay_endpoint: Address for questions; None: no question is asked, and every gap sets `must_forget`.
        topic: Receive only topics with this prefix.
        clock: Monotonic time in seconds.

    Attributes:
        num_replayed: Number of batches received as answers.
        num_unreadable: Number of messages that are not valid batches; a batch with a number counts as lost.
    """

    def __init__(
        self,
        endpoint: str,
        replay_endpoint: str | None = None,
        *,
        topic: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_replayed = 0
        self.num_unreadable = 0
        self._replay_endpoint = replay_endpoint
        self._clock = clock
        self._order = BatchOrder(can_ask=replay_endpoint is not None)
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._heard_at = clock()  # time of the last message or question
        self._answered_at = 0.0  # time of the last progress of an answer
        self._is_owed_answer = False  # whether an answer is unfinished on the open connection
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._live = self._context.socket(zmq.SUB)
        self._live.setsockopt(zmq.RCVHWM, RECEIVE_HIGH_WATER_MARK)
        self._live.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        self._live.setsockopt(zmq.LINGER, 0)
        self._live.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._replay: zmq.Socket[bytes] | None = None
        try:
            self._live.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError("endpoint", endpoint, f"cannot connect: {error.strerror}") from error

    @classmethod
    def of_service(cls, run_dir: str | os.PathLike[str] | None = None, engine_index: int = 0) -> KVEventSubscriber:
        """Subscribe to an engine of the service in a run directory of this host.

        Raises:
            ServiceUnavailable: No service runs there.
            ConfigError: The directory does not belong to this user alone, or the service publishes no events.
        """
        directory = RunDir(Path(run_dir) if run_dir is not None else default_run_dir())
        directory.check()
        config = ServiceConfig.load(directory.config).kv_events
        if not config.enable_kv_cache_events:
            raise ConfigError("kv_events.enable_kv_cache_events", False, "start the service with this set")
        endpoint, replay_endpoint = config.addresses(directory.path, engine_index)
        here = "://127.0.0.1:"  # one cannot connect to the engine's "every interface"
        return cls(endpoint.replace("://*:", here), replay_endpoint.replace("://*:", here), topic=config.topic)

    @property
    def num_lost_track(self) -> int:
        """How often missing batches could not be obtained, without the first batch."""
        return self._order.num_lost_track

    def batches(self, timeout_s: float) -> Iterator[ReceivedBatch]:
        """Yield batches in order, until none has come for `timeout_s`."""
        with contextlib.suppress(DeadlineExceeded):
            while True:
                yield self.next_batch(timeout_s)

    def next_batch(self, timeout_s: float) -> ReceivedBatch:
        """Return the next batch in order; raise `DeadlineExceeded` if none comes within `timeout_s`."""
        deadline, is_late = self._clock() + timeout_s, False
        while (received := self._order.take()) is None:
            if is_late:
                raise DeadlineExceeded("next_batch", timeout_s)
            self._ask()
            self._wait(min(CHECK_INTERVAL_S, max(0.0, deadline - self._clock())))
            self._receive_live()
            self._receive_answer()
            is_late = self._clock() >= deadline
        return received

    def close(self) -> None:
        """Close the sockets. A second call does nothing."""
        self._hang_up()
        self._live.close()
        self._context.term()

    # ---- questions

    def _ask(self) -> None:
        """Send the question that is due, if there is one; give up an answer without progress."""
        order, now = self._order, self._clock()
        if order.is_asking and now - self._answered_at > ANSWER_TIMEOUT_S:
            order.replay_ended()
        if now - self._heard_at > CHECK_INTERVAL_S:
            order.check()
        if self._is_owed_answer and not order.is_asking:
            self._hang_up()  # the rest of a former answer may still arrive on this connection
        if order.ask_from is not None and self._replay_endpoint is not None:
            self._replay = self._replay or self._call(self._replay_endpoint)
            self._replay.send_multipart([b"", order.ask_from.to_bytes(NUMBER_BYTES, "big")], zmq.NOBLOCK)
            order.asked()
            self._is_owed_answer = True
            self._heard_at = self._answered_at = now

    def _call(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BATCH_BYTES)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close()
            raise ConfigError("replay_endpoint", endpoint, f"cannot connect: {error.strerror}") from error
        return socket

    def _hang_up(self) -> None:
        if self._replay is not None:
            self._replay.close()
        self._replay, self._is_owed_answer = None, False

    # ---- receiving

    def _wait(self, timeout_s: float) -> None:
        poller = zmq.Poller()
        for socket in (self._live, self._replay):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        poller.poll(round(timeout_s * 1000))

    def _receive_live(self) -> None:
        for frames in self._messages(self._live):
            if len(frames) == 3 and len(frames[1]) == NUMBER_BYTES:
                self._order.live(int.from_bytes(frames[1], "big"), self._decoded(frames[2]))
            else:
                self.num_unreadable += 1

    def _receive_answer(self) -> None:
        for frames in self._messages(self._replay):
            self._answered_at = self._clock()
            number = frames[-2] if len(frames) in (3, 4) else b""  # vLLM before 0.26 leaves the topic out
            if number == END_OF_REPLAY:
                self._is_owed_answer = False
                self._order.replay_ended()
            elif len(number) == NUMBER_BYTES:
                self._order.replayed(int.from_bytes(number, "big"), self._decoded(frames[-1]))
                self.num_replayed += 1
            else:
                self.num_unreadable += 1

    def _messages(self, socket: zmq.Socket[bytes] | None) -> Iterator[list[bytes]]:
        """Yield up to `MESSAGES_AT_ONCE` received messages of a socket."""
        if socket is None:
            return
        for _ in range(MESSAGES_AT_ONCE):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard_at = self._clock()
            yield frames

    def _decoded(self, payload: bytes) -> KVEventBatch | None:
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.num_unreadable += 1
            return None
