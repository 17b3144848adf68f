"""The real scheduler, real plans and two real ranks in one process; plays the server's part, and lets accidents happen.

    arrivals, aborts ──> schedule ──> plans ──> both ranks ──> commit | withdraw | lost ──> answers, compared
         └ resets, deaths, epochs ┘      └ aborts, epochs, deaths, failures ┘

Everybody who is not aborted must be answered rightly, within a number of steps that follows from what was asked; and
the audit must hold at every turn. What has happened is counted, so that a set of worlds can show that it has.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np

from mmcached.client import Client as SyncClient
from mmcached.engine import Scheduler
from mmcached.engine.results.results import Results
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.server.held_records import HeldRecords
from mmcached.engine.server.item_frames import ItemFrames
from mmcached.engine.server.plan import build_plan
from mmcached.engine.server.step_results import StepResults
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import (
    CacheMiss,
    ComputationFailed,
    InvalidRequest,
    PoisonousRequest,
    error_from_wire,
    error_to_wire,
)
from mmcached.wire.messages.engine import AddRequest, StepOutput
from mmcached.wire.messages.frontend_from_engines import RequestEncoded
from mmcached.wire.messages.worker import StepPlan
from mmcached.wire.sockets.frames import Frame
from mmcached.worker.hidden_states import RowSpan, TensorPrefixStore
from tests.engine.builders import inline_tensors
from tests.world.audit import Audit
from tests.world.clients import Arrivals, Client, last_client, request_of
from tests.world.knobs import Knobs
from tests.world.rank import POINTS, Accident, Killed, Rank
from tests.world.shelf import Shelf
from tests.world.tally import Tally

INCARNATION = 77
CURIOUS = 1 << 40
"""Asks the store at the end; no request of the engine."""
ACCIDENTS_IN_A_STEP = (
    "fail 0",
    "fail 1",
    "fail both",
    "kill 0",
    "kill 1",
    "lost unsent",
    "lost done",
    "epoch",
    "epoch",
)
ACCIDENTS_BETWEEN = ("flush", "death", "epoch")
HARMLESS = ("epoch", "")
"""What else goes wrong in a step of a world with poison: then who fails is not innocent."""

Plans = Sequence[tuple[StepPlan, list[Frame]]]


def play(knobs: Knobs, config: ServiceConfig | None = None) -> Counter[str]:
    """Let a world run to its end; return how often what happened. A failure names the world.

    Args:
        config: of the service, where it is not that of the knobs: it has a checkpoint.
    """
    world = World(knobs, config or knobs.config())
    try:
        world.run()
    except Exception as error:
        error.add_note(f"in step {world.num_steps} of {knobs}")
        raise
    return world.seen


class World:
    """One engine, two ranks, and their clients.

    Attributes:
        seen: how often what happened.
    """

    def __init__(self, knobs: Knobs, config: ServiceConfig) -> None:
        self.num_steps = 0
        self._knobs = knobs
        self._config = config
        self._tally = Tally(self._config.block_size)
        self.seen = self._tally.seen
        self._rng = random.Random(f"{knobs.seed} events")
        self._arrivals = Arrivals(knobs, self._config, random.Random(f"{knobs.seed} arrivals"))
        self._scheduler = Scheduler(self._config)
        self._tally.count_clamps(self._scheduler.caches.kept_rows)
        self._items = ItemFrames(self._config)
        self._results = Results()
        is_shared = knobs.has_store and self._config.shares_encoder_outputs
        self._shelf = Shelf(self._config, random.Random(f"{knobs.seed} shelf"), self.seen) if is_shared else None
        self._outputs = HeldRecords(lambda: cast("SyncClient", self._shelf))
        self._num_ranks = 0
        self._ranks = [self._new_rank(rank) for rank in range(2)]
        self._fingerprint = self._ranks[0].runner.encoder_fingerprint
        if self._shelf is not None:
            self._shelf.fingerprint = self._fingerprint
        self._audit = Audit(self._config, self._scheduler)
        self._clients: dict[int, Client] = {}
        self._answered: list[Client] = []
        self._num_left = knobs.num_requests
        self._num_accidents = self._num_lost = 0
        self._work = self._most_work = self._num_arrived = 0
        self._is_over = False

    def run(self) -> None:
        while self._num_left or self._clients:
            self._turn()
        self._is_over = True
        if self._shelf is not None:
            self._shelf.is_calm = True
        self._add(last_client(self._num_arrived + 1))
        while self._clients:
            self._turn()
        self._audit.check_end(self._ranks)
        assert self._items._frames == {}
        assert len(self._outputs) == 0
        assert self._shelf is None or not self._shelf.leased
        assert len(self._results) == 0
        for rank in self._ranks:
            self._tally.count_rows(rank)
            assert set(rank.encoder_keys()) == self._scheduler.encoder_cache_manager.ready_keys()
            if rank.store is not None:  # the end of the last client cannot have been told
                self._check_store(rank.store)
                assert rank.store.stats().requests <= 1
                assert rank.store.stats().blocks - rank.store.stats().evictable_blocks <= 1
        self.seen["steps"] = self.num_steps
        self.seen["preemptions"] = self._scheduler.num_preemptions
        self.seen["KV hits"] = self._scheduler.kv_cache_manager.stats().hits
        encoder = self._scheduler.encoder_cache_manager.stats()
        self.seen["encoder hits"], self.seen["encoder evictions"] = encoder.hits, encoder.evictions

    def _check_store(self, store: TensorPrefixStore) -> None:
        """Compare all that is kept of the answered with the truth, whether somebody would find it or not."""
        epoch = self._scheduler.tensor_prefix_index.epoch
        for client in self._answered:
            if client.epochs != {epoch} or not client.truth:
                continue
            store.attach(CURIOUS, client.names)
            for key, truth in client.truth.items():
                num_rows = store.usable_prefix(client.names, len(client.names) * store.block_size, [key])
                if num_rows:
                    with store.read([RowSpan(CURIOUS, 0, num_rows)], [key]) as rows:
                        assert np.array_equal(rows.get(key, 0).numpy(), truth[:num_rows]), f"{key} is kept wrong"
                    self.seen["rows looked at"] += num_rows
            store.release([CURIOUS])

    # ---- one turn

    def _turn(self) -> None:
        while self._num_left and self._rng.random() < self._knobs.p_arrival:
            self._num_left -= 1
            client = self._arrivals.next()
            if self._knobs.p_poison and self._rng.random() < self._knobs.p_poison:
                client.kills_at = self._rng.randrange(client.most_progress)
                self.seen["poisonous arrivals"] += 1
            self._add(client)
        self._perhaps_abort(list(self._clients), "aborts")
        if self._is_accident():
            self._happen_between()
        if self._shelf is not None:
            self._shelf.happen()
        step = self._scheduler.schedule()
        assert (step is None) == (not self._scheduler.has_work())
        self._tell_failed()
        if step is None:
            return
        self.num_steps += 1
        assert self.num_steps <= self._most_steps(), f"nobody gets on: {self._scheduler.running}"
        self._audit.check_step(step)
        self._audit.lives.planned(step)
        self._tally.count_step(step)
        kept = self._outputs.hits_of([request.request_id for request, *_ in step.encode])
        try:
            plans = [
                build_plan(step, self._items, engine_incarnation=INCARNATION, worker_epoch=rank.worker_epoch)
                for rank in self._ranks
            ]
        except CacheMiss as miss:
            self.seen["gone before the plan"] += 1
            results = StepResults(step, 2, 0.0)
            results.plan_error = error_to_wire(miss)
            self._withdraw(step, results, "both")
            self._audit.check_rest(self._ranks)
            return
        self._perhaps_abort(step.request_ids(), "aborts in flight")
        accidents = ACCIDENTS_IN_A_STEP if not self._knobs.p_poison else HARMLESS
        self._finish(step, plans, self._rng.choice(accidents) if self._is_accident() else "")
        del kept
        self._audit.check_rest(self._ranks)

    def _finish(self, step: ScheduledStep, plans: Plans, accident: str) -> None:
        """Have a step computed, and book what becomes of it."""
        what, _, who = accident.partition(" ")
        hit = Accident(self._rng.choice(POINTS), what == "kill") if what in ("fail", "kill") else None
        early = self._rng.random() < 0.5
        if what == "epoch" and early:
            self._new_epoch("epochs in flight")
        if self._is_deadly(step):
            self._die_of(step)
            return
        if accident == "lost unsent":
            self._start_over([self._rng.randrange(2)])
            self.seen["resets in flight"] += 1
            return
        results = StepResults(step, 2, 0.0)
        results.is_shared = any(item.store_epoch for item in plans[0][0].encode)
        for rank, (plan, frames) in zip(self._ranks, plans, strict=True):
            try:
                answer = rank.execute(plan, frames, hit if who in (str(rank.rank), "both") else None)
            except Killed:
                self.seen["killed in a step"] += 1
                self._start_over([rank.rank])
                if self._knobs.blames:
                    self._scheduler.blame_death(step)
                    self._tell_failed()
                return
            results.add(rank.rank, *answer)
        if accident == "lost done":
            self._start_over([self._rng.randrange(2)])
            self.seen["resets in flight"] += 1
            return
        if what == "epoch" and not early:
            self._new_epoch("epochs in flight")
        if results.failure() is not None:
            self._withdraw(step, results, who)
        else:
            self._commit(step, results, plans[0][0].row_epoch)

    def _commit(self, step: ScheduledStep, results: StepResults, epoch: int) -> None:
        """Do what the engine's server does with a step that both ranks have computed."""
        output, payload = results.answer()
        self._results.gather(output, payload)
        self._tally.count_output(step, output)
        for request_id in step.request_ids():
            if request_id in self._clients:
                self._clients[request_id].epochs.add(epoch)
                self._clients[request_id].names = list(self._clients[request_id].request.block_hashes)
        sampled = {entry.request_id: entry.token_id for entry in output.sampled}
        finished = self._scheduler.commit(step, sampled, results.prefix_report(), output.missing)
        self._audit.lives.committed(step)
        for request in finished:
            if request.request_id in self._clients:
                self._answer(self._clients[request.request_id])
        self._hand_on(output)

    def _hand_on(self, output: StepOutput) -> None:
        """Give the rows of streamed generations to those that go on, unless their channel is full."""
        message, frames = self._results.unsent((), dict.fromkeys(made.request_id for made in output.rows))
        if self._rng.random() < 0.2:
            return
        for part in message.rows:
            self._clients[part.request_id].take(part.rows, frames)
            self.seen["streamed rows"] += part.rows.tensor.shape[0]
        self._results.mark_sent(message)

    def _withdraw(self, step: ScheduledStep, results: StepResults, who: str) -> None:
        self.seen["withdrawn steps"] += 1
        self.seen["withdrawn for one rank"] += who != "both"
        self._scheduler.withdraw(step, results.prefix_report())
        failure = results.failure()
        cause = None if failure is None else error_from_wire(failure)
        lost = self._that_load(step, cause.mm_hashes) if isinstance(cause, CacheMiss) else {}
        assert not isinstance(cause, ComputationFailed) or cause.retryable
        self._num_lost += cause is not None and (bool(lost) or cause.retryable)
        if self._knobs.blames and cause is not None and not lost:
            self._scheduler.blame_failure(step, cause)
            self._tell_failed()
        for request_id, mm_hash in lost.items():
            client = self._clients[request_id]
            self._outputs.drop(self._fingerprint, mm_hash, client.message.tenant)
            self._scheduler.abort(request_id)
            self._miss(client)

    def _that_load(self, step: ScheduledStep, mm_hashes: Sequence[str]) -> dict[int, str]:
        """Return the open requests of a step that have one of these items from the store, with that item."""
        return {
            request.request_id: feature.mm_hash
            for request in step.requests()
            for feature in request.features
            if feature.has_output and feature.mm_hash in mm_hashes and request.request_id in self._clients
        }

    def _miss(self, client: Client) -> None:
        """Send a request again that lacks an output, with its items; of one that has been answered in part the client
        hears that it may try again.
        """
        request = client.request
        first_row = 0 if request.rows is None else request.rows.first_wanted
        is_fresh = request.num_tokens == request.num_prompt_tokens and not request.num_emitted
        self._forget(request.request_id)
        if is_fresh and request.num_rows_delivered == first_row:
            self.seen["sent again"] += 1
            self._num_lost += 1
            client.epochs.clear()
            self._clients[request.request_id] = client
            self._send(client, client.message)
        else:
            self.seen["lost in part"] += 1

    def _answer(self, client: Client) -> None:
        request = client.request
        answer, frames = self._results.take_answer(request)
        if isinstance(answer, RequestEncoded):
            if len(client.epochs) == 1:
                embeddings = [inline_tensors(outputs)["embeddings"] for outputs in answer.outputs]
                client.check_embeddings(self._config.model, embeddings, frames)
        else:
            rows, pieces = client.all_rows(answer.rows, frames)
            client.check_shape(rows)
            if len(client.epochs) == 1:
                client.check_generation(self._config, rows, pieces)
        self.seen["finished"] += 1
        self.seen["of two epochs"] += len(client.epochs) > 1
        self.seen["answers with rows"] += request.rows is not None
        self._answered.append(client)
        self._forget(request.request_id)

    # ---- clients

    def _add(self, client: Client) -> None:
        self._num_arrived += 1
        work = client.most_steps(self._most_tokens())
        self._work += work
        self._most_work = max(self._most_work, work)
        self._clients[client.request.request_id] = client
        self._send(client, self._with_outputs(client.message))

    def _most_tokens(self) -> int:
        """Return the least number of tokens that a step has for the request that is the first in order."""
        config = self._config
        budget = config.max_num_batched_tokens
        aligned = self._scheduler.caches.language.chunk_tokens
        return aligned or min(budget, config.long_prefill_token_threshold or budget)

    def _with_outputs(self, message: AddRequest) -> AddRequest:
        """Return a request as the frontend sends it: without the pixels of what is in the store."""
        shelf = self._shelf
        if shelf is None:
            return message
        features = [
            msgspec.structs.replace(feature, payload=None, has_output=True)
            if shelf.look(message.tenant, feature.mm_hash)
            else feature
            for feature in message.features
        ]
        return msgspec.structs.replace(message, features=features, store_epoch=shelf.epoch)

    def _send(self, client: Client, message: AddRequest) -> None:
        """Have a request queued, as the engine's server does it; once more with all pixels if an output is gone."""
        if not self._outputs.lease_records(message, self._fingerprint):
            self._outputs.release_request(message.request_id)
            message = client.message
        self._items.add(message, client.payload)
        client.request = request_of(message, self._outputs.tokens(message.request_id))
        self._scheduler.add_request(client.request)
        self._results.open(client.request, is_streamed=client.streams_rows)

    def _perhaps_abort(self, request_ids: Sequence[int], what: str) -> None:
        if request_ids and not self._is_over and self._rng.random() < self._knobs.p_abort:
            request_id = self._rng.choice(request_ids)
            self._scheduler.abort(request_id)
            self._forget(request_id)
            self.seen[what] += 1

    def _tell_failed(self) -> None:
        for request, error in self._scheduler.take_failed():
            client = self._clients[request.request_id]
            if isinstance(error, CacheMiss):
                self.seen["gone after a flush"] += 1
                self._miss(client)
                continue
            if isinstance(error, PoisonousRequest):
                assert request.num_faults >= self._config.limits.max_deaths_per_request
                assert client.kills_at is not None or not self._knobs.p_poison, f"{request} is innocent"
                self.seen["poisonous"] += 1
            elif request.num_faults:
                assert self._knobs.blames
                self.seen["failed alone"] += 1
            else:
                assert isinstance(error, InvalidRequest)
                assert client.names_two_sizes, f"{request} is refused: {error}"
                self.seen["refused"] += 1
            self._forget(request.request_id)

    def _forget(self, request_id: int) -> None:
        self._clients.pop(request_id, None)
        self._items.forget_request(request_id)
        self._results.forget_request(request_id)
        self._outputs.release_request(request_id)

    def _most_steps(self) -> int:
        """Return how many steps may have been made if the first in order gets on in each.

        It starts over when something goes wrong, or when somebody more urgent comes. While it waits for blocks or for
        encoder space, those who hold them get on instead; so all counts twice.
        """
        num_overtaken = self._num_arrived if self._knobs.policy == "priority" else 0
        return 2 * ((1 + self._num_accidents + self._num_lost) * self._work + num_overtaken * self._most_work)

    # ---- what goes wrong

    def _is_deadly(self, step: ScheduledStep) -> bool:
        """Whether a step computes the place at which one of its requests kills."""
        starts = {request.request_id: request.progress for request in step.requests()}
        starts |= {chunk.request.request_id: chunk.start for chunk in step.chunks}
        for request, goal in step.goals():
            client = self._clients.get(request.request_id)
            kills_at = None if client is None else client.kills_at
            if kills_at is not None and starts[request.request_id] <= kills_at < goal:
                return True
        return False

    def _die_of(self, step: ScheduledStep) -> None:
        """Let one rank or both die of a step."""
        self._num_accidents += 1
        most_deaths = self._config.limits.max_deaths_per_request * self.seen["poisonous arrivals"]
        assert self.seen["died of poison"] < most_deaths, "it is tried again and again"
        dead = self._rng.choice(([0], [1], [0, 1]))
        self._start_over(dead)
        self._scheduler.blame_death(step)
        self._tell_failed()
        self.seen["died of poison"] += 1
        self._audit.check_rest(self._ranks)

    def _is_accident(self) -> bool:
        """Draw whether something goes wrong now, and count it."""
        if (
            self._is_over
            or self._num_accidents >= self._knobs.max_accidents
            or self._rng.random() >= self._knobs.p_accident
        ):
            return False
        self._num_accidents += 1
        return True

    def _happen_between(self) -> None:
        what = self._rng.choice(ACCIDENTS_BETWEEN)
        if what == "epoch":
            self._new_epoch("epochs")
        else:
            self._start_over([self._rng.randrange(2)] if what == "death" else [])
            self.seen["resets"] += 1
        self._audit.check_rest(self._ranks)

    def _new_epoch(self, what: str) -> None:
        if self._shelf is not None:
            self._shelf.flush()
        self._outputs.forget_outputs()
        for client in self._clients.values():
            client.request.outputs.clear()
        self._scheduler.caches.new_epoch()
        self.seen[what] += 1

    def _start_over(self, dead: Sequence[int]) -> None:
        """Ranks have lost their caches, with a step in flight or without: no book holds, the others are cleared."""
        self._scheduler.reset()
        self._audit.lives.cleared()
        for number, rank in enumerate(self._ranks):
            if number in dead:
                self._tally.count_rows(rank)
                self._ranks[number] = self._new_rank(number)
            else:
                rank.runner.clear()

    def _new_rank(self, rank: int) -> Rank:
        self._num_ranks += 1
        return Rank(self._knobs, self._config, rank, worker_epoch=self._num_ranks, shelf=self._shelf)
