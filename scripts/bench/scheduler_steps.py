"""Samples whole steps while everybody decodes: deciding one, booking what has come back, and all that an engine does.

Prompts that nobody has seen, of 256 tokens and up to 15 more, were computed in earlier steps. Each decode step gives
every request one token, and every sixteenth a new block, which nearly always evicts one; another sixteenth fills its
block: ours hashes it when it schedules, vLLM when it commits. What a step is checked for, and the worker's answer, are
made between the calls and are part of no figure; what a call returns is dropped after its clock has been read.

"With tokens told": our commit from the worker's list of tokens to the list of what each stream is told, all being
streamed, because vLLM's call makes an output for every request too; its figure is the same.

**Engine overhead**, the engine's own work between two steps of its worker, for 1 to 256 running requests. In the
figure, with the service's own `StepRunner`, books and encoder, and one worker:

    frames in ─ decode the `StepOutput` ─ commit ─ schedule ─ book leases ─ build the plan ─ encode ─ frames out

"With tokens told": and the message that tells the frontend what each stream has got, all being streamed. Not in the
figure: the sockets, the worker, and what an engine does when a request begins or ends. Everybody decodes; each
sixteenth request needs a block in a step. Workers keep no requests, so a plan carries whole block tables: what it costs
grows with the tokens that requests have, and that is a family of its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from mmcached.engine.results.results import Results
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.server.engine_latency import EngineLatency
from mmcached.engine.server.held_records import HeldRecords
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.step_runner import StepRunner
from mmcached.engine.server.worker_group import WorkerGroup
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.engine import FromWorker, Sampled, StepOutput, WorkerAttached, WorkerHello
from mmcached.wire.messages.worker import FromEngineToWorker, StepPlan
from mmcached.wire.sockets.frames import Frame, decode_frames, encode_frames, make_decoder
from scripts.bench.harness import Row, Sampler, against_first, compare, cpu_ns, row
from scripts.bench.sides import (
    BLOCK_SIZE,
    NUM_KV_BLOCKS,
    SAMPLED_TOKEN_ID,
    Ours,
    OurSteps,
    Side,
    Steps,
    our_config,
)

NUM_RUNNING = 256
PARAMS = f"{NUM_RUNNING} decoding"
PROMPT_TOKENS = 256
TOKEN_IDS = range(150_000)
NUM_STEPS = 2 * BLOCK_SIZE
UNIT = "us per step"
TOLD = "commit, with tokens told"
OVERHEAD = "engine overhead"
OVERHEAD_TOLD = f"{OVERHEAD}, with tokens told"
RUNNING = (1, 4, 16, 64, NUM_RUNNING)
CONTEXTS = (PROMPT_TOKENS, 1_024, 4_096)
INCARNATION = 1
WORKER_EPOCH = 2
DIGEST = bytes(16)

_from_worker = make_decoder(FromWorker)
_to_worker = make_decoder(FromEngineToWorker)


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


# ---- all that an engine does between two steps of its worker


def overhead(num_rounds: int) -> list[Row]:
    """Return each figure against the smallest of its family."""
    rows: list[Row] = []
    for name, is_told in ((OVERHEAD, False), (OVERHEAD_TOLD, True)):
        by_running = {f"{number} decoding": _by_running(number, is_told=is_told) for number in RUNNING}
        rows += _rows(name, by_running, num_rounds)
    by_context = {f"{NUM_RUNNING} decoding, {number:,} tokens each": _by_context(number) for number in CONTEXTS}
    return rows + _rows(OVERHEAD, by_context, num_rounds)


def _rows(name: str, family: Mapping[str, Sampler], num_rounds: int) -> list[Row]:
    figures = {params: value / 1_000 for params, value in compare(family, num_rounds).items()}
    return against_first(name, UNIT, figures)


def _by_running(num_running: int, *, is_told: bool) -> Sampler:
    engine, draw = Engine(our_config(NUM_RUNNING), is_told=is_told), random.Random(0)
    fill(engine.steps, draw)
    return lambda: per_step(engine, num_running, partial(start_decoding, engine.steps, num_running, draw))


def _by_context(prompt_tokens: int) -> Sampler:
    num_blocks = NUM_RUNNING * (prompt_tokens + BLOCK_SIZE + 2 * NUM_STEPS) // BLOCK_SIZE
    config = replace(
        our_config(NUM_RUNNING), num_kv_blocks=max(NUM_KV_BLOCKS, 2 * num_blocks), max_num_batched_tokens=1 << 17
    )
    engine, draw = Engine(config), random.Random(0)
    start = partial(start_decoding, engine.steps, NUM_RUNNING, draw, prompt_tokens=prompt_tokens)
    return lambda: per_step(engine, NUM_RUNNING, start)


def per_step(engine: Engine, num_running: int, start: Callable[[], None]) -> float:
    """Return what a step takes: requests start, decode for two blocks, and end.

    Raises:
        RuntimeError: the first or the last step is not one token for everybody, or not so many blocks were needed.
    """
    start()
    engine.start()
    plan = read_plan(engine.plan, num_running)
    # Made beforehand: a worker's work, in between and in this process, would drive the books out of the caches.
    *answers, last_answer = [answer(plan, step) for step in range(plan.step, plan.step + NUM_STEPS + 1)]
    num_held = engine.steps.num_held_blocks()
    taken = sum(cpu_ns(partial(engine.turn, frames)) for frames in answers)
    read_plan(engine.plan, num_running)
    num_new = engine.steps.num_held_blocks() - num_held
    if num_new != num_running * NUM_STEPS // BLOCK_SIZE:
        raise RuntimeError(f"{num_new} new blocks for {num_running} requests in {NUM_STEPS} steps")
    engine.stop(last_answer)
    return taken / NUM_STEPS


class Engine:
    """What stands between the sockets of an engine, with one worker; `turn` is what `EngineServer` does in a step.

    Attributes:
        plan: the frames that were last sent to the worker.
        told: the same to the frontend.
    """

    def __init__(self, config: ServiceConfig, *, is_told: bool = False) -> None:
        self.plan: list[Frame] = []
        self.told: list[Frame] = []
        self.steps = OurSteps(config)
        self._results = Results()
        self._is_told = is_told
        group = WorkerGroup(cast(Any, self), 1, incarnation=INCARNATION, config_digest=config.digest())
        group.hello(b"worker", WorkerHello(0, WORKER_EPOCH, config.digest(), "cpu"))
        group.attached(WorkerAttached(WORKER_EPOCH, INCARNATION))
        self._runner = StepRunner(
            self.steps.scheduler,
            group,
            ItemFrames(config),
            HeldRecords(cast(Any, None)),
            incarnation=INCARNATION,
            timeout_s=config.step_timeout_s,
            latency=EngineLatency(time.monotonic, slow_ms=0.0),
            clock=time.monotonic,
        )

    def send(self, peer: bytes, message: object, payload: Sequence[Frame] = ()) -> None:
        """In place of a socket."""
        self.plan = encode_frames(message, payload)

    def start(self) -> None:
        """Send the first plan, with all requests streamed."""
        self._results = Results()
        for request in self.steps.added if self._is_told else ():
            self._results.open(request, is_streamed=True)
        self._runner.start()

    def turn(self, frames: list[Frame]) -> None:
        """Book what the worker has answered, tell of it, and send the next plan."""
        self._book(frames)
        self._runner.start()

    def stop(self, frames: list[Frame]) -> None:
        """Book the last answer, and end all requests."""
        self._book(frames)
        self.steps.end_all()

    def _book(self, frames: list[Frame]) -> None:
        message, payload = decode_frames(frames, _from_worker)
        finished = self._runner.add_result(message, payload)
        if finished is None or finished.failure() is not None:
            raise RuntimeError(f"the worker's answer is not taken: {message}")
        sampled = {entry.request_id: entry.token_id for entry in finished.answer()[0].sampled}
        self.steps.commit(finished.step, sampled)
        if self._results.has_streams:
            message, _ = self._results.unsent((chunk.request for chunk in finished.step.chunks if chunk.sample), ())
            self.told = encode_frames(message)
            self._results.mark_sent(message)


def read_plan(frames: list[Frame], num_running: int) -> StepPlan:
    """Return what a worker receives.

    Raises:
        RuntimeError: it is not one token for everybody.
    """
    plan, _ = decode_frames(frames, _to_worker)
    if not isinstance(plan, StepPlan):
        raise RuntimeError(f"not a plan: {plan}")
    if [(len(chunk.token_ids), chunk.sample) for chunk in plan.chunks] != [(1, True)] * num_running:
        raise RuntimeError(f"not {num_running} requests with one token each: {plan}")
    return plan


def answer(plan: StepPlan, step: int) -> list[Frame]:
    """Return what a worker says to a plan, or to another one for the same requests."""
    sampled = [Sampled(chunk.request_id, SAMPLED_TOKEN_ID) for chunk in plan.chunks]
    return encode_frames(StepOutput(INCARNATION, WORKER_EPOCH, step, DIGEST, sampled, [], []))
