"""What is under way between P0, an engine and its workers. Where the product's own message will do, it is used:
`WorkerHello`, `WorkerAttached` and `Attach` travel as they are. All are values.
"""

from __future__ import annotations

import msgspec

from mmcached.wire.handle import Handle, LeaseId
from mmcached.wire.messages.engine import WorkerAttached, WorkerHello
from mmcached.wire.messages.worker import Attach


class Descriptor(msgspec.Struct, frozen=True):
    """A lease, sent. `meant_for` is what no process can see: the engine's number that P0 had in mind."""

    handle: Handle
    lease: LeaseId
    meant_for: int


class BarrierQuestion(msgspec.Struct, frozen=True):
    epoch: int
    nonce: int
    barrier_id: int
    last_seq: int
    slots: tuple[int, ...]


class RowHello(msgspec.Struct, frozen=True):
    """`sender` is what P0 cannot see: the number of the engine process."""

    epoch: int
    row: int
    nonce: int
    sender: int


class GapReport(msgspec.Struct, frozen=True):
    epoch: int
    nonce: int


class BarrierAnswer(msgspec.Struct, frozen=True):
    epoch: int
    nonce: int
    barrier_id: int
    received: tuple[tuple[int, int], ...]


class Plan(msgspec.Struct, frozen=True):
    engine_nonce: int
    worker_epoch: int
    step: int
    seq: int
    handle: Handle


class ReadDone(msgspec.Struct, frozen=True):
    engine_nonce: int
    worker_epoch: int
    step: int
    seq: int


FromWriter = Descriptor | BarrierQuestion
FromEngine = RowHello | GapReport | BarrierAnswer
ToWorker = Attach | Plan
FromWorker = WorkerHello | WorkerAttached | ReadDone


class Said:
    """A message as a trace tells it; put into words only when somebody reads it."""

    def __init__(self, message: FromWriter | FromEngine | ToWorker | FromWorker) -> None:
        self._message = message

    def __str__(self) -> str:
        match self._message:
            case Descriptor(handle, lease):
                return f"lease {lease.seq} of generation {handle.generation} for nonce {lease.nonce}"
            case BarrierQuestion(_, nonce, barrier_id, last_seq):
                return f"barrier {barrier_id} for nonce {nonce} after lease {last_seq}"
            case RowHello(_, row, nonce, sender):
                return f"RowHello of engine {sender}: row {row}, nonce {nonce}"
            case GapReport(_, nonce):
                return f"the report of a gap, nonce {nonce}"
            case BarrierAnswer(_, nonce, barrier_id, received):
                return f"the answer to barrier {barrier_id}, nonce {nonce}: received by slot {dict(received)}"
            case Attach(engine_nonce, _, row, nonce):
                return f"Attach of engine {engine_nonce}: row {row}, nonce {nonce}"
            case Plan(engine_nonce, epoch, step, seq):
                return f"plan {step} of engine {engine_nonce} for worker {epoch}: read under lease {seq}"
            case WorkerHello(rank, epoch):
                return f"WorkerHello of worker {epoch}, rank {rank}"
            case WorkerAttached(epoch, engine_nonce):
                return f"Attached of worker {epoch} to engine {engine_nonce}"
            case ReadDone(engine_nonce, epoch, step, seq):
                return f"read_done of worker {epoch} to engine {engine_nonce}: plan {step}, lease {seq}"
