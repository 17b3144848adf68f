"""Engines and clients that a test plays by hand, around one real Frontend with its real rings."""

from __future__ import annotations

import io
import secrets
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from PIL import Image

from mmcached.client.results import stats_from
from mmcached.frontend.mount import Mount
from mmcached.frontend.server import Frontend
from mmcached.frontend.store_alone import StoreAlone
from mmcached.gateway.gateway import ModelGateway
from mmcached.shm import ObjectStoreReader, ReaderEntry, RingReader, decode_record_frames, encode
from mmcached.shm.files.lock_file import LockFile
from mmcached.shm.store.codec import Record
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.handle import Handle
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend as to_frontend
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages.parts import EncoderForm, Inline
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ServiceStats
from tests.doubles.dealer import Dealer
from tests.doubles.engine import WireEngine
from tests.present import present
from tests.shm.rings import Taking

if TYPE_CHECKING:
    from mmcached.wire.tracing import StartSpan

DEADLINE_S = 30.0
MessageT = TypeVar("MessageT")


def png(shade: int, size: tuple[int, int] = (40, 40)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def mount_of(config: ServiceConfig) -> Mount:
    """Return the gateway that a service with this configuration has."""
    return ModelGateway if config.has_workers else StoreAlone


class FakeClient:
    """One client process of the store, with its presence and, once taken, a real entry of the store's ring."""

    def __init__(self, bench: Bench, name: str = to_frontend.ANY_CLIENT) -> None:
        self._bench = bench
        self.name = name
        self.client_id = secrets.token_hex(16)
        self.presence = LockFile(bench.directory.client_lock(self.client_id))
        self.channel = self._connect()
        self.entry: ReaderEntry | None = None
        self.ring: RingReader | None = None
        self.payload: list[Frame] = []
        self._request_ids = count(1)

    def _connect(self) -> Dealer[to_client.ToClient]:
        return Dealer(self._bench.directory.client_address, to_client.ToClient)

    @property
    def incarnation(self) -> int:
        return 0 if self.entry is None else self.entry.incarnation

    def answer(self, kind: type[MessageT]) -> MessageT:
        """Return the next message, which must be of this kind; of what lies in the ring a lease is taken."""
        self._bench.pump(lambda: self.channel.wait(0))
        message, self.payload = self.channel.receive(0)
        assert isinstance(message, kind), message
        if isinstance(message, to_client.Records) and self.entry is not None:
            assert self.ring is not None
            leases = [Taking(record) for record in message.records if isinstance(record, Handle)]
            assert not leases or all(self.entry.take_leases(leases, self.ring.look))
        return message

    def hello(self) -> to_client.Welcome:
        self.channel.send(to_frontend.ClientHello(self.client_id, self.name))
        return self.answer(to_client.Welcome)

    def connect_anew(self) -> None:
        """Lose the connection and say hello over another; the same process."""
        self.channel.close()
        self.channel = self._connect()
        self.hello()

    def move(self, bench: Bench) -> None:
        """Say hello to the next frontend."""
        self._bench = bench
        self.connect_anew()

    def register(self) -> bool:
        """Take an entry, or say again that this client has it."""
        announcement = present(self.hello().store_ring)
        self.entry = self.entry or ReaderEntry.attach(announcement)
        self.ring = self.ring or RingReader.open(announcement)
        self.channel.send(self.register_message())
        return self.answer(to_client.ReaderRegistered).is_attached

    def register_message(self) -> to_frontend.RegisterReader:
        assert self.entry is not None
        epoch = self.entry.announcement.epoch
        return to_frontend.RegisterReader(
            self.client_id, next(self._request_ids), epoch, self.entry.reader_id, self.entry.incarnation
        )

    def get(self, *keys: str, tenant: str = "") -> to_client.Records:
        number = next(self._request_ids)
        self.channel.send(to_frontend.GetRecords(self.client_id, number, list(keys), tenant, self.incarnation))
        return self.answer(to_client.Records)

    def ask(self, key: str, *, timeout_s: float = 60.0, tenant: str = "") -> int:
        """Send a claim without waiting for its answer; return its number."""
        number = next(self._request_ids)
        message = to_frontend.ClaimRecord(self.client_id, number, key, timeout_s, tenant, self.incarnation)
        self.channel.send(message)
        return number

    def claim(self, key: str) -> to_client.Claimed:
        self.ask(key)
        return self.answer(to_client.Claimed)

    def claim_many(self, *keys: str) -> to_client.Claims:
        number = next(self._request_ids)
        self.channel.send(to_frontend.ClaimRecords(self.client_id, number, list(keys), "", self.incarnation))
        return self.answer(to_client.Claims)

    def send_put(
        self,
        key: str,
        record: Record,
        *,
        epoch: int,
        claim: int = 0,
        tenant: str = "",
        is_joined: bool = False,
        cost_s: float = 0.0,
    ) -> None:
        number = next(self._request_ids)
        message = to_frontend.PutRecord(self.client_id, number, key, epoch, tenant, claim, cost_s=cost_s)
        encoded = encode(record)
        self.channel.send(message, [encoded.joined()] if is_joined else encoded.frames())

    def put(
        self,
        key: str,
        record: Record,
        *,
        claim: int = 0,
        tenant: str = "",
        is_joined: bool = False,
        cost_s: float = 0.0,
    ) -> to_client.Stored:
        """Put a record of the present epoch; joined: as one frame."""
        epoch = self._bench.frontend.stats().store.new_epochs + self._bench.first_epoch
        self.send_put(key, record, epoch=epoch, claim=claim, tenant=tenant, is_joined=is_joined, cost_s=cost_s)
        return self.answer(to_client.Stored)

    def read(self, answer: to_client.Records, index: int = 0) -> Record:
        """Return the record of an answer, owned; its lease is given back."""
        found = answer.records[index]
        if isinstance(found, Inline):
            return decode_record_frames(
                self.payload[found.first_frame : found.first_frame + found.num_frames], tensors="numpy"
            )
        assert self.entry is not None
        assert self.ring is not None
        assert isinstance(found, Handle)
        record = ObjectStoreReader(self.ring).get(found, tensors="numpy", copy=True)
        self.entry.give_back(found)
        return record

    def close(self) -> None:
        """End as a process does: no goodbye."""
        self.channel.close()
        self.presence.close()
        if self.entry is not None:
            self.entry.close()
        if self.ring is not None:
            self.ring.close()


class Bench(Closeable):
    """Everything around one Frontend; it polls only inside `pump`."""

    def __init__(
        self,
        run_dir: Path,
        config: ServiceConfig,
        clock: Callable[[], float],
        *,
        start_span: StartSpan | None = None,
    ) -> None:
        self.directory = RunDir(run_dir)
        self.directory.create()
        self.config = config
        self.frontend = Frontend(self.directory, config, mount_of(config), clock=clock, start_span=start_span)
        self._new_client()
        self.engines: list[WireEngine] = []
        self.clients: list[FakeClient] = []
        self.first_epoch = 0
        self.payload: list[Frame] = []

    @property
    def gateway(self) -> ModelGateway:
        assert isinstance(self.frontend.gateway, ModelGateway)
        return self.frontend.gateway

    def _new_client(self) -> None:
        self.client: Dealer[to_client.ToClient] = Dealer(self.directory.client_address, to_client.ToClient)
        self.client_id = secrets.token_hex(16)
        self.presence = LockFile(self.directory.client_lock(self.client_id))

    def client_dies(self) -> None:
        """Let the client end without a word, and another take its place."""
        self.client.close()
        self.presence.close()
        self._new_client()

    def engine_dies(self, engine: WireEngine) -> None:
        self.engines.remove(engine)
        engine.close()

    def pump(self, wanted: Callable[[], bool]) -> None:
        """Let the frontend poll until something is so; fail if it never is."""
        give_up = time.monotonic() + DEADLINE_S
        while not wanted():
            self.frontend.poll(0.001)  # what is waited for may be at a socket of the test
            assert time.monotonic() < give_up, "never so"

    def from_frontend(self, engine: WireEngine, kind: type[MessageT]) -> MessageT:
        """Return the next message to an engine, which must be of this kind."""

        def has_come() -> bool:
            engine.receive()
            return bool(engine.backlog)

        self.pump(has_come)
        message, self.payload = engine.backlog.pop(0)
        assert isinstance(message, kind), message
        return message

    def answer(self, kind: type[MessageT], *, after: type[object] | None = None) -> MessageT:
        """Return the next message to the client, which must be of this kind; any number `after` kind may come first."""
        while True:
            self.pump(lambda: self.client.wait(0))
            message, self.payload = self.client.receive(0)
            if isinstance(message, kind):
                return message
            assert after is not None, message
            assert isinstance(message, after), message

    def add_engine(self, *, digest: str, index: int = 0) -> WireEngine:
        """Connect an engine that has said hello, and no more."""
        engine = WireEngine(self.directory, digest=digest, index=index)
        self.engines.append(engine)
        return engine

    def connect_engine(
        self, *, index: int = 0, encoder: EncoderForm | None = None, encoder_fingerprint: str = ""
    ) -> WireEngine:
        """Connect an engine that has gone through the whole handshake."""
        engine = self.add_engine(digest=self.config.digest(), index=index)
        self.from_frontend(engine, to_engine.Greeted)
        num_ready = len(self.stats().engines)
        engine.channel.send(from_engine.EngineReady(1, encoder_fingerprint, encoder=encoder))
        while len(self.stats().engines) <= num_ready:
            pass  # they name an engine once it is ready
        return engine

    def connect_client(self, *, is_reader: bool = True, name: str = to_frontend.ANY_CLIENT) -> FakeClient:
        """Connect a client of the store."""
        client = FakeClient(self, name)
        self.clients.append(client)
        if not self.first_epoch:
            self.first_epoch = client.hello().store_epoch - self.frontend.stats().store.new_epochs
        assert not is_reader or client.register()
        return client

    def generate(self, request_id: int, images: list[bytes], *, timeout_s: float = 60.0) -> None:
        prompt = "look: " + "<image>" * len(images)
        self.client.send(to_frontend.Generate(self.client_id, request_id, prompt, 4, None, timeout_s), images)

    def stats(self, *, after: type[object] | None = None) -> ServiceStats:
        """Return the service's statistics, when all that engines have sent was read, and they have what was sent to
        them. See `answer` for `after`.
        """
        for engine in self.engines:
            self._read_all_of(engine)
        self.client.send(to_frontend.GetStats(0))
        stats = stats_from(self.answer(to_client.Stats, after=after))
        for engine in self.engines:
            self._read_all_of(engine)
        return stats

    def _read_all_of(self, engine: WireEngine) -> None:
        """Wait until a second greeting of an engine is answered, which changes nothing."""
        if not engine.is_greeted:
            engine.receive()
            return
        engine.greet_again()

        def is_answered() -> bool:
            engine.receive()
            return not engine.is_greeting

        self.pump(is_answered)

    def close(self) -> None:
        self.frontend.close()
        for engine in self.engines:
            engine.close()
        for client in self.clients:
            client.close()
        self.client.close()
        self.presence.close()
