"""Publishes the KV events of an engine, and replays recent batches to subscribers that missed some.

    publish ──> [batch n] ──┬──> PUB ──> every subscriber; slow ones lose batches
                            └──> ring of the last batches ──> ROUTER ──> replay: all from number k on, then the end

Frame layout: `mmcached.wire.messages.kv_events`. Batch numbers begin at the clock's nanoseconds and rise by one, so a
restart is a gap that cannot be filled. The first batch after a start says that nothing is stored.

Nothing here blocks: the engine's loop calls `publish` and `serve_replay`. A long replay is sent in parts, one per turn
of the loop. A subscriber that does not read its replay costs its queue; if it asks again, the replay starts anew.

Incoming frames and queues are bounded in bytes. A tcp endpoint also needs a guard against messages of endless small
frames, more connections than file descriptors, and endless subscriptions: ZeroMQ keeps every topic of a connection,
about 50 bytes per byte (an XPUB in manual mode keeps rejected topics too).

Invariant: the ring holds the last batches without a gap.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import msgspec
import structlog
import zmq

from mmcached.wire.config import MIB, ServiceConfig
from mmcached.wire.errors import ConfigError
from mmcached.wire.kv_events_config import KVEventsConfig
from mmcached.wire.messages.kv_events import (
    END_OF_REPLAY,
    NUMBER_BYTES,
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    KVEvent,
    KVEventBatch,
)
from mmcached.wire.sockets.unix_sockets import NamedSocket

log = structlog.get_logger("mmcached.engine")

BATCHES_AT_ONCE = 64
"""Batches of a replay sent per call; some hundred kilobytes."""
QUESTIONS_AT_ONCE = 64
REPLAY_HIGH_WATER_MARK = 1000
LISTEN_BACKLOG = 128
MAX_ANSWERS = 64
"""Concurrent replays; further requests are dropped, and subscribers ask again."""
MAX_QUESTION_BYTES = 4096
"""Largest frame, in bytes, that a subscriber may send: a number, or a topic."""
TOKEN_BYTES, BLOCK_BYTES, BATCH_BYTES = 5, 192, 256
"""Usual upper limits, in bytes, of a token, a block (hashes, keys, its removal) and a batch's header."""

_encoder = msgspec.msgpack.Encoder()


class KVEventPublisher:
    """Bound PUB and ROUTER sockets, and the ring of batches for replays. Raises `ConfigError` if it cannot bind.

    `most_bytes` is the usual size limit of one batch; `clock` returns nanoseconds since the epoch.
    """

    def __init__(
        self,
        config: KVEventsConfig,
        *,
        publish_address: str,
        replay_address: str,
        most_bytes: int = BATCH_BYTES,
        data_parallel_rank: int = 0,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._topic = config.topic.encode()
        self._rank = data_parallel_rank
        self._clock = clock
        self._has_int_hashes = config.use_int_block_hashes
        self._ring: deque[bytes] = deque()
        self._ring_bytes = 0
        self._most_kept = config.buffer_steps
        self._most_kept_bytes = config.buffer_mb * MIB
        self._answers: dict[bytes, int] = {}  # next batch number of each unfinished replay
        self.next_number = clock()
        high_water_mark = max(1, min(config.hwm, self._most_kept_bytes // most_bytes))
        with ExitStack() as undo:
            context: zmq.Context[zmq.Socket[bytes]] = undo.enter_context(zmq.Context())
            self.publish_socket = _bound(
                context, undo, zmq.PUB, "endpoint", publish_address, high_water_mark=high_water_mark
            )
            replay_mark = min(high_water_mark, REPLAY_HIGH_WATER_MARK)
            self.replay_socket = _bound(
                context, undo, zmq.ROUTER, "replay_endpoint", replay_address, high_water_mark=replay_mark
            )
            self._closing = undo.pop_all()
        self.replay_socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.publish([AllBlocksCleared()])

    @property
    def num_answers(self) -> int:
        return len(self._answers)

    def publish(self, events: Sequence[KVEvent]) -> None:
        """Send a batch to all subscribers, and keep it; no-op without events."""
        if not events:
            return
        events = [_with_int_hashes(event) for event in events] if self._has_int_hashes else [*events]
        payload = _encoder.encode(KVEventBatch(self._clock() / 1e9, events, self._rank))
        self.publish_socket.send_multipart([self._topic, _packed(self.next_number), payload], zmq.NOBLOCK)
        self._ring.append(payload)
        self._ring_bytes += len(payload)
        self.next_number += 1
        while len(self._ring) > self._most_kept or (self._ring_bytes > self._most_kept_bytes and len(self._ring) > 1):
            self._ring_bytes -= len(self._ring.popleft())

    def serve_replay(self) -> bool:
        """Accept new replay requests, and send the next part of one replay; return whether to call again at once."""
        self._take_questions()
        for reader in list(self._answers):
            wanted = self._answers.pop(reader)
            try:
                if not self._send_part(reader, wanted):
                    return True
            except zmq.Again:
                continue  # the subscriber's queue is full
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                del self._answers[reader]  # the subscriber has disconnected
            return bool(self._answers)
        return False

    def poller(self) -> zmq.Poller:
        """Return a poller that a replay request wakes up, for the engine's loop."""
        poller = zmq.Poller()
        poller.register(self.replay_socket, zmq.POLLIN)
        return poller

    def close(self) -> None:
        self._closing.close()

    def _take_questions(self) -> None:
        for _ in range(QUESTIONS_AT_ONCE):
            try:
                reader, *frames = self.replay_socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 2 and not frames[0] and len(frames[1]) == NUMBER_BYTES:
                if reader in self._answers or len(self._answers) < MAX_ANSWERS:
                    self._answers[reader] = int.from_bytes(frames[1], "big")
            else:
                log.warning("invalid replay request for KV events", peer=reader.hex(), frames=len(frames))

    def _send_part(self, reader: bytes, wanted: int) -> bool:
        oldest = self.next_number - len(self._ring)
        first = min(max(wanted, oldest), self.next_number)
        self._answers[reader] = first
        for number, payload in enumerate(islice(self._ring, first - oldest, first - oldest + BATCHES_AT_ONCE), first):
            self._send(reader, self._topic, _packed(number), payload)
            self._answers[reader] = number + 1
        if self._answers[reader] < self.next_number:
            return False
        self._send(reader, b"", END_OF_REPLAY, b"")
        del self._answers[reader]
        return True

    def _send(self, reader: bytes, *frames: bytes) -> None:
        self.replay_socket.send_multipart([reader, b"", *frames], zmq.NOBLOCK)


def kv_event_publisher_from_config(config: ServiceConfig, run_dir: Path, engine_index: int) -> KVEventPublisher:
    publish_address, replay_address = config.kv_events.addresses(run_dir, engine_index)
    most_tokens = config.max_num_batched_tokens
    most_blocks = most_tokens // config.block_size + config.max_num_seqs
    return KVEventPublisher(
        config.kv_events,
        most_bytes=most_tokens * TOKEN_BYTES + most_blocks * BLOCK_BYTES + BATCH_BYTES,
        publish_address=publish_address,
        replay_address=replay_address,
        data_parallel_rank=engine_index,
    )


def bind_named(socket: zmq.Socket[bytes], address: str) -> Callable[[], object]:
    """Bind a socket; return a function that removes its name after it was closed.

    ZeroMQ itself would remove the name of `ipc://…` on close even if it belongs to another service by then.

    Raises:
        OSError: (zmq.ZMQError too) The address cannot be bound.
    """
    if not address.startswith("ipc://"):
        socket.bind(address)
        return lambda: None
    named = NamedSocket(Path(address.removeprefix("ipc://")), LISTEN_BACKLOG)
    socket.setsockopt(zmq.USE_FD, named.socket.detach())  # ZeroMQ closes it
    socket.bind(address)
    return named.remove_name


def _bound(
    context: zmq.Context[zmq.Socket[bytes]],
    stack: ExitStack,
    kind: int,
    field: str,
    address: str,
    *,
    high_water_mark: int,
) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, high_water_mark)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
    try:
        remove_name = bind_named(socket, address)
    except (OSError, zmq.ZMQError) as error:
        socket.close()
        raise ConfigError(f"kv_events.{field}", address, f"cannot bind: {error.strerror}") from error
    stack.callback(remove_name)
    stack.callback(socket.close)
    return socket


def _packed(number: int) -> bytes:
    return number.to_bytes(NUMBER_BYTES, "big")


def _with_int_hashes(event: KVEvent) -> KVEvent:
    match event:
        case BlockStored(block_hashes=hashes, parent_block_hash=parent):
            return msgspec.structs.replace(
                event,
                block_hashes=[_as_int(block_hash) for block_hash in hashes],
                parent_block_hash=None if parent is None else _as_int(parent),
            )
        case BlockRemoved(block_hashes=hashes):
            return msgspec.structs.replace(event, block_hashes=[_as_int(block_hash) for block_hash in hashes])
        case _:
            return event


def _as_int(block_hash: BlockHash) -> BlockHash:
    return int.from_bytes(block_hash[-8:], "big") if isinstance(block_hash, bytes) else block_hash
