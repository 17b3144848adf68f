"""A frontend, a store and workers that say what a test tells them, around one real EngineServer."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from mmcached.engine.server.server import EngineServer
from mmcached.wire.closeable import Closeable
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import MmcachedError, error_to_wire
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as from_engine
from mmcached.wire.messages import worker as to_worker
from mmcached.wire.messages.frontend_from_engines import RequestGenerated
from mmcached.wire.messages.parts import Feature, StoredItem
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame
from tests.doubles.dealer import Dealer
from tests.doubles.router import Router

if TYPE_CHECKING:
    from mmcached.wire.tracing import StartSpan

MessageT = TypeVar("MessageT")
DEADLINE_S = 30.0


class FakeWorker:
    """One rank, over a real socket."""

    def __init__(self, address: str, rank: int, digest: str, *, life: int = 1) -> None:
        self.epoch = 100 * life + rank
        self.rank = rank
        self.channel: Dealer[to_worker.FromEngineToWorker] = Dealer(address, to_worker.FromEngineToWorker)
        self.channel.send(to_engine.WorkerHello(rank, self.epoch, digest, "cpu"))

    def output(self, plan: to_worker.StepPlan, *, token: int = 65, digest: bytes = b"d") -> to_engine.StepOutput:
        """An output that samples `token` wherever the plan asks."""
        sampled = [to_engine.Sampled(chunk.request_id, token) for chunk in plan.chunks if chunk.sample]
        return to_engine.StepOutput(plan.engine_incarnation, self.epoch, plan.step, digest, sampled, [], [])

    def failure(self, plan: to_worker.StepPlan, error: Any) -> to_engine.StepFailed:
        return to_engine.StepFailed(plan.engine_incarnation, self.epoch, plan.step, error)

    def attached(self, attach: to_worker.Attach) -> None:
        self.channel.send(to_engine.WorkerAttached(self.epoch, attach.engine_incarnation))


class Lease:
    """A hit: what it leases is free when nobody refers to it any more."""

    def __init__(self, token: str | None) -> None:
        self.token = token


class FakeStore:
    """In the place of the engine's client.

    Attributes:
        outputs: by key the token of an encoder's output, None for one that is a copy.
        items: tokens of processed items.
    """

    def __init__(self) -> None:
        self.outputs: dict[str, str | None] = {}
        self.items: set[str] = set()
        self.dropped: list[str] = []
        self.leases: list[weakref.ref[Lease]] = []

    def get(self, key: str, **options: object) -> Lease | None:
        return self._lease(self.outputs[key]) if key in self.outputs else None

    def open(self, token: str, **options: object) -> Lease | None:
        return self._lease(token) if token in self.items else None

    def drop(self, key: str, **options: object) -> None:
        self.dropped.append(key)

    def close(self) -> None:
        pass

    @property
    def num_leased(self) -> int:
        gc.collect()
        return sum(lease() is not None for lease in self.leases)

    def _lease(self, token: str | None) -> Lease:
        lease = Lease(token)
        self.leases.append(weakref.ref(lease))
        return lease


class Bench(Closeable):
    """Everything around one EngineServer; a step is taken by `step` in this thread, nothing runs by itself."""

    def __init__(
        self,
        run_dir: Path,
        config: ServiceConfig,
        clock: Callable[[], float],
        *,
        start_span: StartSpan | None = None,
    ) -> None:
        directory = RunDir(run_dir)
        directory.create()
        self.config = config
        self.frontend: Router[from_engine.FromEngine] = Router(directory.engine_address, from_engine.FromEngine)
        self.store = FakeStore()
        with mock.patch("mmcached.engine.server.server.contact", return_value=self.store):
            self.engine = EngineServer(directory, config, 0, clock=clock, start_span=start_span)
        self.address = directory.worker_address(0)
        self.workers: list[FakeWorker] = []
        self.peer = b""
        self.received: list[tuple[from_engine.FromEngine, list[Frame]]] = []
        self.payload: list[Frame] = []

    def pump(self, wanted: Callable[[], bool]) -> None:
        """Let the engine poll, and take in what it says, until something is so; fail if it never is."""
        give_up = time.monotonic() + DEADLINE_S
        while time.monotonic() < give_up:
            self.engine.poll(0.001)
            while (received := self.frontend.try_receive()) is not None:
                self.peer, message, payload = received
                self.received.append((message, payload))
            if wanted():
                return
        raise AssertionError(f"never so; received {[type(message).__name__ for message, _ in self.received]}")

    def expect(self, kind: type[MessageT]) -> MessageT:
        """Return the next message of this kind from the engine, dropping those before it."""
        self.pump(lambda: any(isinstance(message, kind) for message, _ in self.received))
        while True:
            message, self.payload = self.received.pop(0)
            if isinstance(message, kind):
                return message

    def kinds(self) -> list[type]:
        """Return the kinds of the messages that have come from the engine, and were not expected yet."""
        return [type(message) for message, _ in self.received]

    def send(self, message: object, payload: Sequence[Frame] = ()) -> None:
        """Send a message of the frontend."""
        self.frontend.send(self.peer, message, payload)

    def turns(self) -> None:
        """Let the engine take turns in which nothing is expected."""
        for _ in range(20):
            self.engine.poll(0.001)

    # ---- attaching

    def connect(self) -> None:
        """Go through the whole handshake: frontend, workers."""
        self.greet()
        for rank in range(self.config.world_size):
            self.attach(self.add_worker(rank))
        self.expect(from_engine.EngineReady)

    def greet(self, session: int = 1) -> None:
        """Answer the engine's hello."""
        self.expect(from_engine.EngineHello)
        self.send(to_engine.Greeted(session))

    def add_worker(self, rank: int) -> FakeWorker:
        self.workers.append(FakeWorker(self.address, rank, self.config.digest()))
        return self.workers[-1]

    def from_engine(self, worker: FakeWorker, kind: type[MessageT]) -> MessageT:
        """Return the next message to a worker, which must be of this kind."""
        self.pump(lambda: worker.channel.wait(0))
        message, self.payload = worker.channel.receive(0)
        assert isinstance(message, kind), message
        return message

    def attach(self, worker: FakeWorker) -> to_worker.Attach:
        """Let a worker answer the `Attach` that it is sent, until the engine knows."""
        attach = self.from_engine(worker, to_worker.Attach)
        worker.attached(attach)
        self.pump(
            lambda: any(link.is_attached for link in self.engine._group.in_rank_order() if link.rank == worker.rank)
        )
        return attach

    def replace(self, rank: int) -> FakeWorker:
        """Let a rank be killed, and another process take its place."""
        self.workers[rank].channel.close()
        life = self.workers[rank].epoch // 100 + 1
        self.workers[rank] = FakeWorker(self.address, rank, self.config.digest(), life=life)
        return self.workers[rank]

    # ---- steps

    def plan(self, rank: int = 0) -> to_worker.StepPlan:
        """Return the next plan that a rank is sent."""
        return self.from_engine(self.workers[rank], to_worker.StepPlan)

    def plans(self) -> list[to_worker.StepPlan]:
        """Return the next plan of each rank."""
        return [self.plan(rank) for rank in range(len(self.workers))]

    def answer(
        self, plans: Sequence[to_worker.StepPlan], *, error: MmcachedError | None = None, token: int = 65
    ) -> None:
        """Let each rank run its plan, or fail in it."""
        for worker, plan in zip(self.workers, plans, strict=True):
            answer = worker.output(plan, token=token) if error is None else worker.failure(plan, error_to_wire(error))
            worker.channel.send(answer)

    def run_step(self, *, error: MmcachedError | None = None, token: int = 65) -> None:
        """Let each rank run the next step, or fail in it."""
        self.answer(self.plans(), error=error, token=token)

    def serve(self, request_id: int, item: StoredItem | None = None) -> RequestGenerated:
        """Send a request that takes one step; return its answer."""
        self.add(request_id, item)
        self.run_step()
        answer = self.expect(RequestGenerated)
        assert answer.request_id == request_id
        return answer

    # ---- requests

    def put_item(self, key: str) -> StoredItem:
        self.store.items.add(key)
        return StoredItem(key)

    def add(
        self,
        request_id: int,
        item: StoredItem | None = None,
        *,
        max_tokens: int = 1,
        is_streamed: bool = False,
        priority: int = 0,
    ) -> None:
        """Send a request of five tokens, or six with an image of two."""
        features = []
        tokens = list(b"hello")
        if item is not None:
            features = [Feature("m" * 64, "image", 2, 2, 2, 16, item)]
            tokens = [*b"ab", 258, 258, *b"cd"]
        options: dict[str, Any] = {"is_streamed": is_streamed, "priority": priority}
        add = to_engine.AddRequest(request_id, "generate", tokens, features, max_tokens, None, **options)
        self.send(add)

    @property
    def leases(self) -> int:
        return self.store.num_leased

    def close(self) -> None:
        self.engine.close()
        for worker in self.workers:
            worker.channel.close()
        self.frontend.close()
