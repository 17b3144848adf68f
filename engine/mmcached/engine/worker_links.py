"""The workers of one engine: who is connected, who is attached, and the outputs of the step in flight.

    hello --> attaching --> attached
All ranks run every plan; a step is complete when each rank has answered it, and their digests are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.wire.channels import Frame
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import StepFailed, StepOutput, WorkerHello

Result = StepOutput | StepFailed


@dataclass(slots=True)
class WorkerLink:
    """One worker, by rank. `is_attached` once it holds its byte and its share of the row."""

    peer: bytes
    rank: int
    worker_epoch: int
    device: str
    is_attached: bool = False


class WorkerLinks:
    """The ranks of one engine."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._links: dict[int, WorkerLink] = {}

    def hello(self, peer: bytes, message: WorkerHello) -> WorkerLink:
        """Return the rank's link, made anew if the process behind it is another one."""
        link = self._links.get(message.rank)
        if link is None or link.worker_epoch != message.worker_epoch:
            link = WorkerLink(peer, message.rank, message.worker_epoch, message.device)
            self._links[message.rank] = link
        link.peer = peer
        return link

    def current(self, rank: int) -> WorkerLink | None:
        return self._links.get(rank)

    def by_epoch(self, worker_epoch: int) -> WorkerLink | None:
        return next((link for link in self._links.values() if link.worker_epoch == worker_epoch), None)

    @property
    def are_all_attached(self) -> bool:
        return len(self._links) == self._world_size and all(link.is_attached for link in self._links.values())

    def in_rank_order(self) -> list[WorkerLink]:
        return [self._links[rank] for rank in sorted(self._links)]


class StepResults:
    """The outputs of one step, as they come in."""

    def __init__(self, step: int, world_size: int, deadline: float) -> None:
        self.step = step
        self.deadline = deadline
        self._world_size = world_size
        self._results: dict[int, tuple[Result, list[Frame]]] = {}

    def add(self, rank: int, result: Result, payload: list[Frame]) -> None:
        self._results[rank] = (result, payload)

    @property
    def is_complete(self) -> bool:
        return len(self._results) == self._world_size

    @property
    def missing_ranks(self) -> list[int]:
        return [rank for rank in range(self._world_size) if rank not in self._results]

    def failure(self) -> StepFailed | None:
        """Return the first failure in rank order, or None if every rank has run the step."""
        ordered = (self._results[rank][0] for rank in sorted(self._results))
        return next((result for result in ordered if isinstance(result, StepFailed)), None)

    def answer(self) -> tuple[StepOutput, list[Frame]]:
        """Return rank 0's output with its payload.

        Raises:
            InvariantError: the ranks computed different things.
        """
        outputs = {rank: result for rank, (result, _) in self._results.items() if isinstance(result, StepOutput)}
        first = outputs[0]
        differing = [rank for rank, output in outputs.items() if output.digest != first.digest]
        if differing:
            raise InvariantError(f"step {self.step}: ranks {differing} computed something else than rank 0")
        return first, self._results[0][1]
