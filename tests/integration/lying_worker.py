"""A worker that is wrong once: rank 0 samples another token than it should. Its answers are those that clients get.

Run as a module, in the place of `mmcached`. It is wrong in the first step that goes on behind position `LIES_AT`; a
mark in the run directory says that this has happened, so those who come after it are honest. What it says is consistent
in itself, as with a device that miscomputes: only the other ranks know better.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from mmcached.cli import main
from mmcached.wire.messages.worker import StepPlan
from mmcached.wire.process.death import arm_from_environment
from mmcached.worker.model.decoder import CausalDecoder
from mmcached.worker.steps.runner import ModelRunner

LIES_AT = 50
LIAR = 0
MARK = "has-lied"


def corrupt(rank: int, mark: Path) -> None:
    """Make this process's model wrong once, if it is the one to be."""
    execute, sample = ModelRunner.execute, CausalDecoder.sample
    is_now = False

    def execute_noting(self: ModelRunner, plan: StepPlan, *rest: object) -> object:
        nonlocal is_now
        is_late = any(chunk.sample and chunk.num_computed_tokens >= LIES_AT for chunk in plan.chunks)
        is_now = is_late and rank == LIAR and not mark.exists()
        return execute(self, plan, *rest)  # type: ignore[arg-type]

    def sample_wrongly(self: CausalDecoder, hidden: torch.Tensor) -> list[int]:
        tokens = sample(self, hidden)
        if is_now:
            mark.touch()
            tokens = [(token + 1) % 256 for token in tokens]
        return tokens

    ModelRunner.execute = execute_noting  # type: ignore[assignment,method-assign]
    CausalDecoder.sample = sample_wrongly  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    arm_from_environment()
    arguments = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    corrupt(int(arguments["--rank"]), Path(arguments["--run-dir"]) / MARK)
    main()
