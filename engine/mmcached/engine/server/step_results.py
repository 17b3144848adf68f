"""Results of one step, by rank."""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.client import Hit
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.wire.errors import ComputationFailed, ErrorInfo, InvariantError, error_to_wire
from mmcached.wire.messages.engine import PrefixReport, StepFailed, StepOutput
from mmcached.wire.sockets.frames import Frame

Result = StepOutput | StepFailed


class StepResults:
    """Step in flight, and its results by rank; it counts as hung after `deadline`, in seconds of the engine's clock.

    Attributes:
        given_to: epochs, by rank, of the workers that were sent its plan.
        held: leases on the records that its workers read in the store.
        is_shared: whether ranks exchange their encoder outputs through the store.
        plan_error: reason why its plan could not be built or sent.
    """

    def __init__(self, step: ScheduledStep, world_size: int, deadline: float) -> None:
        self.step = step
        self.deadline = deadline
        self.given_to: dict[int, int] = {}
        self.held: Sequence[Hit] = ()
        self.is_shared = False
        self.plan_error: ErrorInfo | None = None
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

    def computing(self) -> dict[int, int]:
        """Return the epochs, by rank, of the workers that were sent the plan and have not answered."""
        return {rank: epoch for rank, epoch in self.given_to.items() if rank not in self._results}

    def failure(self) -> ErrorInfo | None:
        """Return the plan's error, else the error of the first rank that failed, else None.

        Raises `InvariantError` if a rank lacks content that the engine lists.
        """
        ordered = ((rank, self._results[rank][0]) for rank in sorted(self._results))
        failures = {rank: result.error for rank, result in ordered if isinstance(result, StepFailed)}
        for rank, error in failures.items():
            if error.code == InvariantError.code:
                raise InvariantError(f"step {self.step.step_id}: rank {rank} contradicts the engine: {error.message}")
        if not failures and self.is_shared and self._differing():
            # Perhaps not this engine's fault: any client that may put records can replace an output in the store.
            return error_to_wire(ComputationFailed("encoder outputs that differ", retryable=True))
        return next(iter(failures.values()), self.plan_error)

    def encoder_keys(self) -> dict[int, list[str] | None]:
        """Return the keys in each rank's encoder cache after the step; None for a rank that has not sent them."""
        return {rank: output.encoder_keys for rank, output in self._outputs().items()}

    def prefix_report(self) -> PrefixReport:
        """Return rank 0's report of its prefix store, which a failed step has too."""
        return self._results[0][0].prefix_report if self._results else {}

    def answer(self) -> tuple[StepOutput, list[Frame]]:
        """Return rank 0's output with its payload. Raises `InvariantError` if the ranks' outputs differ."""
        differing = self._differing()
        if differing:
            raise InvariantError(f"step {self.step.step_id}: outputs of ranks {differing} differ from rank 0's")
        return self._outputs()[0], self._results[0][1]

    def _differing(self) -> list[int]:
        outputs = self._outputs()
        return [rank for rank, output in outputs.items() if output.digest != outputs[0].digest]

    def _outputs(self) -> dict[int, StepOutput]:
        return {rank: result for rank, (result, _) in self._results.items() if isinstance(result, StepOutput)}
