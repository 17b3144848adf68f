"""Samples whole steps while everybody decodes: to decide one, to book what has come back from it, and both.

Prompts that nobody has seen, of 256 tokens and up to 15 more, were computed in earlier steps. Each decode step gives
every request one token, and every sixteenth a new block, which nearly always evicts one; another sixteenth fills its
block: ours hashes it when it schedules, vLLM when it commits. What a step is checked for, and the worker's answer, are
made between the calls and are part of no figure; what a call returns is dropped after its clock has been read.

"With tokens told": our commit from the worker's list of tokens to the list of what each stream is told, all being
streamed, because vLLM's call makes an output for every request too; its figure is the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmcached.engine.results.results import Results
from mmcached.engine.scheduling.scheduler import ScheduledStep
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.engine import Sampled
from scripts.bench.harness import Row, Sampler, compare, row
from scripts.bench.scheduler_sides import BLOCK_SIZE, NUM_KV_BLOCKS, Ours, OurSteps, Side, Steps, our_config

NUM_RUNNING = 256
PARAMS = f"{NUM_RUNNING} decoding"
PROMPT_TOKENS = 256
TOKEN_IDS = range(150_000)
NUM_STEPS = 2 * BLOCK_SIZE
UNIT = "us per step"
TOLD = "commit, with tokens told"


@dataclass(frozen=True, slots=True)
class Path:
    """One comparison: which of the two calls of a step are timed."""

    name: str
    is_schedule_timed: bool
    is_commit_timed: bool


PATHS = {
    "schedule": Path("schedule", is_schedule_timed=True, is_commit_timed=False),
    "commit": Path("commit", is_schedule_timed=False, is_commit_timed=True),
    "step": Path("schedule and commit", is_schedule_timed=True, is_commit_timed=True),
}


def measure(path: Path, vllm: Side | None, num_rounds: int) -> list[Row]:
    """Return a path's rows against vLLM; none without it.

    Raises:
        Unavailable: its scheduler cannot be imported.
    """
    if vllm is None:
        return []
    samplers = {"vLLM": sampler(path, vllm.steps(NUM_RUNNING)), path.name: sampler(path, Ours().steps(NUM_RUNNING))}
    if path == PATHS["commit"]:
        samplers[TOLD] = sampler(path, TellingSteps(our_config(NUM_RUNNING)))
    figures = {name: value / 1_000 for name, value in compare(samplers, num_rounds).items()}
    peer = figures.pop("vLLM")
    return [row(name, PARAMS, value, UNIT, peer="vLLM", peer_value=peer) for name, value in figures.items()]


def sampler(path: Path, steps: Steps) -> Sampler:
    """Return what times a path: requests start, decode for two blocks, and end."""
    draw = random.Random(0)
    fill(steps, draw)

    def sample() -> float:
        start_decoding(steps, NUM_RUNNING, draw)
        taken = 0
        for _ in range(NUM_STEPS):
            num_held = steps.num_held_blocks()
            scheduled_in, step = _timed(steps.schedule)
            check_step(steps, step, NUM_RUNNING, steps.num_held_blocks() - num_held)
            committed_in, _ = _timed(steps.commit, step, steps.results(step))
            taken += scheduled_in * path.is_schedule_timed + committed_in * path.is_commit_timed
        steps.end_all()
        return taken / NUM_STEPS

    return sample


def fill(steps: Steps, draw: random.Random) -> None:
    """Leave published content in all blocks but those that are the last of a request."""
    for _ in range(NUM_KV_BLOCKS * BLOCK_SIZE // (NUM_RUNNING * PROMPT_TOKENS) + 1):
        start_decoding(steps, NUM_RUNNING, draw)
        steps.end_all()


def start_decoding(steps: Steps, num_running: int, draw: random.Random, *, prompt_tokens: int = PROMPT_TOKENS) -> None:
    """Let requests run until each has its first token: so many at once as a block has tokens, one of each phase."""
    for first in range(0, num_running, BLOCK_SIZE):
        for index in range(first, min(num_running, first + BLOCK_SIZE)):
            steps.add(draw.choices(TOKEN_IDS, k=prompt_tokens + index % BLOCK_SIZE))
        step = steps.schedule()
        steps.commit(step, steps.results(step))


def check_step(steps: Steps, step: Any, num_running: int, num_new_blocks: int) -> None:
    """Raises:
    RuntimeError: not exactly one token for everybody, and one block for each sixteenth.
    """
    expected = (num_running, num_running), num_running // BLOCK_SIZE
    found = steps.size(step), num_new_blocks
    if found != expected:
        raise RuntimeError(f"(requests, tokens), new blocks of a step: {found}, expected {expected}")


class TellingSteps(OurSteps):
    """Ours, with what the server does around a commit while all requests are streamed."""

    def __init__(self, config: ServiceConfig) -> None:
        super().__init__(config)
        self._results = Results()
        self._commit = self.commit
        self.commit = self._commit_and_tell

    def add(self, token_ids: Sequence[int]) -> None:
        super().add(token_ids)
        self._results.open(self.added[-1], is_streamed=True)

    def results(self, step: ScheduledStep) -> Any:
        return [Sampled(request_id, token_id) for request_id, token_id in super().results(step).items()]

    def end_all(self) -> None:
        super().end_all()
        self._results = Results()

    def _commit_and_tell(self, step: ScheduledStep, sampled: list[Sampled]) -> object:
        finished = self._commit(step, {entry.request_id: entry.token_id for entry in sampled})
        message, _ = self._results.unsent((chunk.request for chunk in step.chunks if chunk.sample), ())
        self._results.mark_sent(message)
        return finished, message


def _timed(call: Callable[..., Any], *arguments: Any) -> tuple[int, Any]:
    """Return nanoseconds of CPU time of this thread, and what the call has returned."""
    started = time.thread_time_ns()
    result = call(*arguments)
    return time.thread_time_ns() - started, result
