"""Which rows of prefixes steps are going to write, and who counts on that.

A request that is scheduled after a writer may count on its rows, since a worker writes before it reads. While the step
is being built a writer can be taken out of it, and so can whoever counts on it. What is withdrawn is as if it had never
been reserved.

Knows nothing of what has been written. Invariant: a promise that was taken back is found by nobody, and whoever counted
on it has been named.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter

from mmcached.engine.steps.step_queue import QueuedStep, StepQueue

PromisedRows = tuple[bytes, int, int]
"""Rows `[first, end)` of the block with this digest."""


class Promise:
    """What one chunk is going to write. Nobody changes it.

    Attributes:
        keys: tensors of which the model gives rows.
    """

    __slots__ = ("keys", "request_id", "rows")

    def __init__(self, request_id: int, rows: Sequence[PromisedRows], keys: Collection[str]) -> None:
        self.request_id = request_id
        self.rows = rows
        self.keys = keys


class PrefixStep(QueuedStep):
    """One step.

    Attributes:
        takes_part: requests that were given a chunk in it.
        told_released: requests whose rows the workers need not hold any more, told with this step.
        is_void: what it writes is of a former epoch.
    """

    __slots__ = ("is_void", "promises", "takes_part", "told_released")

    def __init__(self, step_id: int) -> None:
        super().__init__(step_id)
        self.is_void = False
        self.promises: list[Promise] = []
        self.takes_part: set[int] = set()
        self.told_released: list[int] = []


class PrefixSteps:
    """All steps that have not ended, the oldest first.

    Attributes:
        building: the step that is being built, if any.
    """

    def __init__(self) -> None:
        self.building: PrefixStep | None = None
        self._queue: StepQueue[PrefixStep] = StepQueue()
        self._counts_on: list[tuple[Promise, int]] = []  # in the order of scheduling
        self._by_digest: dict[bytes, list[tuple[int, int, Promise]]] | None = {}

    def __iter__(self) -> Iterator[PrefixStep]:
        return iter(self._queue)

    # ---- the life of a step, see `StepQueue`

    def begin(self, step_id: int) -> None:
        step = PrefixStep(step_id)
        self._queue.begin(step)
        self.building = step

    def launch(self, step_id: int) -> None:
        self._queue.launch(step_id)
        self.building = None

    def check_oldest(self, step_id: int) -> PrefixStep:
        return self._queue.check_oldest(step_id)

    def end_oldest(self, step_id: int) -> None:
        """Take out the oldest step: nobody needs to count on it any more."""
        step = self._queue.end_oldest(step_id)
        self.building = self._queue.building
        self._take_back(step.promises)

    def end_from(self, step_id: int) -> tuple[list[PrefixStep], list[int]]:
        """Take out this step and all that were begun later.

        Returns:
            The steps, the oldest first, and the requests that counted on them, in the order of scheduling.

        Raises:
            LocalProtocolError: it has ended, or was never begun; nothing has changed.
        """
        ended = self._queue.end_from(step_id)
        self.building = None
        return ended, self._take_back([promise for step in ended for promise in step.promises])

    # ---- promises

    def promise(self, step: PrefixStep, promise: Promise) -> None:
        step.promises.append(promise)
        if self._by_digest is not None:
            self._add(self._by_digest, promise)

    def promised(self, digest: bytes) -> Sequence[tuple[int, int, Promise]]:
        """Return the rows `[first, end)` of a block that are going to be written, and by whom, the lowest first."""
        if self._by_digest is None:
            self._by_digest = {}
            for promise in self._promises():
                self._add(self._by_digest, promise)
        return self._by_digest.get(digest, ())

    def count_on(self, promises: Collection[Promise], request_id: int) -> None:
        self._counts_on += [(promise, request_id) for promise in promises]

    def borrowers(self, request_id: int) -> list[int]:
        """Return, last first, who counts on what a request would write in the step being built, directly or not."""
        if self.building is None or not self._counts_on:
            return []
        lost, open_to_change = {request_id: None}, set(self.building.promises)
        for promise, borrower in self._counts_on:
            if promise.request_id in lost and promise in open_to_change:
                lost[borrower] = None
        return [*lost][:0:-1]

    def leave(self, request_id: int) -> None:
        """A request that nobody counts on is taken out of the step being built, and counts on nobody any more."""
        self._counts_on = [pair for pair in self._counts_on if pair[1] != request_id]
        step = self.building
        if step is not None:
            gone = [promise for promise in step.promises if promise.request_id == request_id]
            step.promises = [promise for promise in step.promises if promise.request_id != request_id]
            step.takes_part.discard(request_id)
            self._take_back(gone)

    def void(self) -> None:
        """Nothing that open steps write is to be found."""
        for step in self._queue:
            step.is_void = True
            step.promises.clear()
        self._counts_on.clear()
        self._by_digest = {}

    # ---- looking in

    def stats(self) -> tuple[int, int]:
        """Return how many steps are open, and how many blocks they are going to write to, counted once per promise."""
        return len(self._queue), sum(len(promise.rows) for promise in self._promises())

    def pairs(self) -> Sequence[tuple[Promise, int]]:
        """Return who counts on which promise."""
        return self._counts_on

    def _promises(self) -> Iterator[Promise]:
        return (promise for step in self._queue for promise in step.promises)

    def _take_back(self, promises: Collection[Promise]) -> list[int]:
        """Forget promises; return who counted on them."""
        if not promises:
            return []
        gone = set(promises)
        lost = {who: None for promise, who in self._counts_on if promise in gone}
        self._counts_on = [pair for pair in self._counts_on if pair[0] not in gone]
        self._by_digest = None
        return list(lost)

    def _add(self, by_digest: dict[bytes, list[tuple[int, int, Promise]]], promise: Promise) -> None:
        for digest, first, end in promise.rows:
            insort(by_digest.setdefault(digest, []), (first, end, promise), key=itemgetter(0))
