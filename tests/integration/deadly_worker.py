"""A worker that is killed by some prompts: it ends by SIGKILL as soon as a plan has a chunk in which `POISON` stands.

Run as a module, in the place of `mmcached`. It stands for a native bug, or a prompt for which the memory of the host is
not enough.
"""

from __future__ import annotations

import os
import signal

from mmcached.cli import main
from mmcached.wire.messages.worker import StepPlan
from mmcached.wire.process.death import arm_from_environment
from mmcached.worker.steps.runner import ModelRunner

POISON = "KILL"
_POISON_IDS = list(POISON.encode())


def is_deadly(plan: StepPlan) -> bool:
    size = len(_POISON_IDS)
    prompts = (list(chunk.token_ids) for chunk in plan.chunks)
    return any(ids[at : at + size] == _POISON_IDS for ids in prompts for at in range(len(ids)))


def make_mortal() -> None:
    """Let this process be killed by its plans."""
    execute = ModelRunner.execute

    def execute_or_die(self: ModelRunner, plan: StepPlan, *rest: object) -> object:
        if is_deadly(plan):
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(self, plan, *rest)  # type: ignore[arg-type]

    ModelRunner.execute = execute_or_die  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    arm_from_environment()
    make_mortal()
    main()
