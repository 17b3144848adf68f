"""One worker process: the entry that it has joined, and the read that it is at.

The product's own: the order of locks and looks in which an entry is joined. It reads until its next event, so whatever
happens in between happens while it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from mmcached.shm.ring.reader import _lock_share
from mmcached.wire.errors import MmcachedError
from mmcached.wire.messages.engine import WorkerAttached, WorkerHello
from mmcached.wire.messages.worker import Attach
from scripts.verification.explorer import Event
from scripts.verification.lease_between import ByteLocks, Description, Plan, ReadDone, Said
from scripts.verification.lease_engine import CONFIG_DIGEST

if TYPE_CHECKING:
    from scripts.verification.lease_world import World


class Worker:
    """Attributes:
    epoch: no two worker processes have the same.
    """

    sees_death: ClassVar[bool] = True

    def __init__(self, rank: int, epoch: int) -> None:
        self.rank = rank
        self.epoch = epoch
        self.attachment: Attach | None = None
        self.reading: Plan | None = None

    def copy(self) -> Worker:
        made = type(self)(self.rank, self.epoch)
        made.attachment, made.reading = self.attachment, self.reading
        return made

    def key(self) -> object:
        return (self.rank, self.epoch, self.attachment, self.reading)

    @property
    def name(self) -> str:
        return f"worker {self.epoch} of rank {self.rank}"

    @property
    def ring_epoch(self) -> int:
        return self.attachment.announcement.epoch if self.attachment and self.attachment.announcement else 0

    # ---- what it may do next

    def events(self, world: World) -> Iterator[Event]:
        if self.reading is not None:
            yield self._event(("has read",), Worker.finish_reading)
            return
        inbox = world.queues.to_worker[self.rank]
        if inbox:
            yield self._event(("takes", Said(inbox[0])), Worker.take)
        elif self.attachment is None and not world.queues.from_worker[self.rank]:
            yield self._event(("says hello",), Worker.say_hello)
        if self.sees_death and not self._is_engine_alive(world):
            yield self._event(("sees that its engine is dead, and exits",), Worker.exit)

    def _event(self, label: tuple[object, ...], method: Callable[[Worker, World], object]) -> Event:
        return Event((self.name, *label), lambda world: method(world.own_worker(self.rank), world))

    def _is_engine_alive(self, world: World) -> bool:
        attach = self.attachment
        if attach is None:
            return True
        byte = ByteLocks.engine_byte(attach.reader_id, world.ring.layout.max_readers)
        return not ByteLocks.is_free(Description(world.locks, self.ring_epoch, self.name).as_fd(), byte)

    # ---- doing it

    def say_hello(self, world: World) -> None:
        world.own_queues().send_from_worker(self.rank, WorkerHello(self.rank, self.epoch, CONFIG_DIGEST, "cpu"))

    def exit(self, world: World) -> None:
        world.end_worker(self.rank)

    def take(self, world: World) -> None:
        match world.own_queues().take_for_worker(self.rank):
            case Attach() as attach:
                self._attach(world, attach)
            case Plan() as plan:
                engine_incarnation = self.attachment and self.attachment.engine_incarnation
                if (engine_incarnation, self.epoch) == (plan.engine_incarnation, plan.worker_epoch):
                    self.reading = plan

    def _attach(self, world: World, attach: Attach) -> None:
        former = self.attachment
        if former is not None and former.engine_incarnation != attach.engine_incarnation:
            self.exit(world)
            return
        if attach != former:
            world.own_locks().release(self.name)
            if not self._join(world, attach):
                self.exit(world)
                return
            self.attachment = attach
        world.own_queues().send_from_worker(
            self.rank, WorkerAttached(self.epoch, attach.engine_incarnation, self.ring_epoch)
        )

    def _join(self, world: World, attach: Attach) -> bool:
        """Lock the entry's share and the rank's byte; False: the entry or the whole ring is another one by now."""
        if attach.announcement != world.ring.announcement:
            return False  # its objects are unlinked
        try:
            _lock_share(
                world.ring.control(world.own_locks(), self.name), attach.reader_id, attach.reader_incarnation, self.rank
            )
        except MmcachedError:
            return False
        return True

    def finish_reading(self, world: World) -> None:
        assert self.reading is not None
        done = ReadDone(self.reading.engine_incarnation, self.epoch, self.reading.step, self.reading.seq)
        self.reading = None
        world.own_queues().send_from_worker(self.rank, done)
