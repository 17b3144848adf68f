"""A scheduler without a policy and a worker that remembers: which sequence each KV slot holds, up to its position.

    build: admit, run, preempt, abort  ->  send  ->  build the next …  ->  commit the oldest: all its chunks are written
                                                     preempt, abort        withdraw one: anything may be in the slots of
                                                                           its chunks, and of all that were sent later

Says nothing of which blocks the manager should choose. Whatever is asked for is done, if it can be done now. Held
against each other are: every hit and what the workers have written, or are going to write before it is read; all that a
chunk builds on and what lies in the slots when its step runs; every block handed out and those that are still in use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.engine import KVCacheBlocks, KVCacheManager, Request
from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import generate
from tests.engine.kv.dice import Dice
from tests.models.kv_model import NULL, Content, Group, content_of

MAX_ALIVE = 5
MAX_STEPS = 3
Tables = Sequence[Sequence[int]]


class Slots:
    """What a worker's KV slots hold.

    Args:
        groups: of layers; the same tokens have other KV in another group.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self._groups = groups
        self._written: dict[tuple[int, int], Content] = {}

    def copy(self) -> Slots:
        other = Slots(self._groups)
        other._written = dict(self._written)
        return other

    def write(self, request: Request, tables: Tables, positions: range, epoch: int = 0) -> None:
        """Let a request compute these positions with the weights of an epoch."""
        for index, (group, table) in enumerate(zip(self._groups, tables, strict=True)):
            for position in positions:
                number, offset = divmod(position, group.block_size)
                assert table[number] != NULL, f"{request}: position {position} has no slot in group {index}"
                self._written[table[number], offset] = index, epoch, content_of(request, position + 1)

    def spoil(self, tables: Tables, positions: range) -> None:
        """A step has failed somewhere: nobody may count on what is there now."""
        for group, table in zip(self._groups, tables, strict=True):
            for position in positions:
                number, offset = divmod(position, group.block_size)
                self._written.pop((table[number], offset), None)

    def check(self, request: Request, tables: Tables, num_tokens: int, epoch: int = 0) -> None:
        """Fail unless all that the token here looks at is what this request would have computed.

        Raises:
            AssertionError: something is not.
        """
        for index, (group, table) in enumerate(zip(self._groups, tables, strict=True)):
            for position in range(group.first_needed(num_tokens), num_tokens):
                number, offset = divmod(position, group.block_size)
                written = self._written.get((table[number], offset))
                expected = index, epoch, content_of(request, position + 1)
                assert written == expected, f"{request}: group {index}, block {table[number]} holds {written}"


@dataclass(eq=False)
class Chunk:
    """A request's part in a step; the tables are those that were sent, whatever becomes of the request."""

    request: Request
    tables: tuple[list[int], ...]
    positions: range
    epoch: int
    is_freed: bool = False


@dataclass(eq=False)
class Plan:
    """A step; nothing is scheduled in it after it was sent."""

    step_id: int
    chunks: list[Chunk]
    is_sent: bool = False


class BareEngine:
    """Leads one manager through steps.

    Attributes:
        requests: those that are neither finished nor aborted.
        plans: the steps that have not ended, the oldest first.
        seen: how often what happened.
    """

    def __init__(self, manager: KVCacheManager, groups: Sequence[Group]) -> None:
        self.manager = manager
        self.groups = groups
        self.slots = Slots(groups)
        self.requests: list[Request] = []
        self.plans: list[Plan] = []
        self.epochs: dict[int, int] = {}  # with whose weights a request is computed
        self.num_steps = self.num_added = self.epoch = 0
        self.seen: Counter[str] = Counter()
        self.begin()

    @property
    def building(self) -> Plan | None:
        return self.plans[-1] if self.plans and not self.plans[-1].is_sent else None

    def do(self, action: str, number: int) -> None:
        """Do it if it can be done now."""
        dice = Dice(number)
        if action in ("admit", "run", "preempt", "abort"):
            candidates = [request for request in self.requests if self._can(action, request)]
            if candidates:
                self._do_to(candidates[dice.below(len(candidates))], action, dice)
        elif action == "add" and len(self.requests) < MAX_ALIVE:
            length, family, max_tokens = 1 + dice.below(40), dice.below(2), 1 + dice.below(8)
            token_ids = [position if position < 25 else family * 100 + position for position in range(length)]
            self.add(token_ids, max_tokens)
        elif action == "begin" and len(self.plans) < MAX_STEPS:
            self.begin()
        elif action == "send" and self.building is not None:
            self.send()
        elif action == "commit" and self.plans and self.plans[0].is_sent:
            self.commit()
        elif action == "withdraw" and self.plans:
            self.withdraw(dice)
        elif action == "reset":
            self.reset()
        elif action == "epoch":
            self.new_epoch()
        self.manager.check_integrity()

    def _do_to(self, request: Request, action: str, dice: Dice) -> None:
        match action:
            case "admit":
                self.admit(request, 1 + dice.below(16))
            case "run":
                self.schedule(request, 1 + dice.below(16))
            case "preempt":
                self.preempt(request)
            case "abort":
                self.abort(request)

    def _can(self, action: str, request: Request) -> bool:
        is_held, plan = request.request_id in self.manager.holders(), self.building
        match action:
            case "admit":
                return plan is not None and not is_held
            case "run":
                takes_part = plan is None or any(chunk.request is request for chunk in plan.chunks)
                return is_held and not takes_part and request.num_computed_tokens < request.num_tokens
            case "preempt":
                return is_held
        return True

    # ---- scheduling

    def add(self, token_ids: Sequence[int], max_tokens: int = 1) -> Request:
        request = generate(self.num_added, token_ids, max_tokens=max_tokens)
        self.num_added += 1
        self.requests.append(request)
        return request

    def admit(self, request: Request, max_tokens: int) -> None:
        """Look a request up and schedule it, if what was found is there by then."""
        hit, num_hit_tokens = self.manager.get_computed_blocks(request)
        slots = self.slots.copy()
        for plan in self.plans:
            for chunk in plan.chunks:
                slots.write(chunk.request, chunk.tables, chunk.positions, chunk.epoch)
        slots.check(request, hit.get_block_ids(), num_hit_tokens, self.epoch)
        self.epochs[request.request_id] = self.epoch
        self.seen["hits"] += num_hit_tokens > 0
        self.seen["hits on what is not written yet"] += not self._is_written(request, hit, num_hit_tokens)
        self.schedule(request, max_tokens, num_hit_tokens, hit)

    def _is_written(self, request: Request, hit: KVCacheBlocks, num_hit_tokens: int) -> bool:
        try:
            self.slots.check(request, hit.get_block_ids(), num_hit_tokens, self.epoch)
        except AssertionError:
            return False
        return True

    def schedule(
        self, request: Request, max_tokens: int, num_hit_tokens: int = 0, hit: KVCacheBlocks | None = None
    ) -> None:
        """Give a request a part in the step that is being built; as far as it counts, that is computed already."""
        assert self.building is not None
        start = request.num_computed_tokens + num_hit_tokens
        end = min(request.num_tokens, start + max_tokens)
        new = self.manager.allocate_slots(request, end - start, num_hit_tokens, hit)
        if new is None:
            self.seen["refused"] += 1
            return
        chunks = [chunk for plan in self.plans for chunk in plan.chunks]
        in_use = {block_id for chunk in chunks for table in chunk.tables for block_id in table} - {NULL}
        handed_out = {block_id for table in new.get_block_ids() for block_id in table}
        assert not in_use & handed_out, f"blocks {in_use & handed_out} are still in use"
        self.seen["several steps at once"] += any(chunk.request is request for chunk in chunks)
        request.num_computed_tokens = end
        tables = self.manager.get_block_ids(request.request_id)
        self.building.chunks.append(Chunk(request, tables, range(start, end), self.epochs[request.request_id]))

    def preempt(self, request: Request) -> None:
        chunks = [(plan, chunk) for plan in self.plans for chunk in plan.chunks if chunk.request is request]
        is_own_victim = any(not plan.is_sent for plan, _ in chunks)
        self.seen["victims of their own step"] += is_own_victim
        self.seen["freed in flight"] += any(plan.is_sent and not chunk.is_freed for plan, chunk in chunks)
        self.seen["preempted later"] += not is_own_victim
        self._take_out(request)

    def abort(self, request: Request) -> None:
        """End a request. What has been sent is written all the same, to blocks that nobody else has meanwhile."""
        self.preempt(request)
        self.requests.remove(request)

    def _take_out(self, request: Request) -> None:
        """Free a request, with those that count on what it would have computed in the step that is being built."""
        freed = [request.request_id]
        try:
            self.manager.free(request)
        except LocalProtocolError:
            freed = self.manager.withdraw_request(request)
            self.seen["withdrawn with others"] += 1
            assert len(freed) > 1
        for plan in self.plans:
            if not plan.is_sent:
                plan.chunks = [chunk for chunk in plan.chunks if chunk.request.request_id not in freed]
            for chunk in plan.chunks:
                chunk.is_freed |= chunk.request.request_id in freed
        for each in self.requests:
            if each.request_id in freed:
                each.num_computed_tokens = 0

    # ---- steps

    def begin(self) -> None:
        """Build a step; the one before has been sent by then."""
        for plan in self.plans:
            plan.is_sent = True
        self.num_steps += 1
        self.plans.append(Plan(self.num_steps, []))
        self.manager.begin_step(self.num_steps)

    def send(self) -> None:
        assert self.building is not None
        self.manager.launch_step(self.building.step_id)
        self.building.is_sent = True

    def commit(self) -> None:
        """Run the oldest step: write all chunks, each after what it builds on; some requests get a token or end."""
        plan = self.plans.pop(0)
        for chunk in plan.chunks:
            self.slots.check(chunk.request, chunk.tables, chunk.positions.start, chunk.epoch)
            self.slots.write(chunk.request, chunk.tables, chunk.positions, chunk.epoch)
        self.manager.commit(plan.step_id)
        for chunk in plan.chunks:
            if not chunk.is_freed and chunk.positions.stop == chunk.request.num_tokens:
                chunk.request.append_output_token(chunk.request.num_tokens)
                if chunk.request.reason_to_finish():
                    self._take_out(chunk.request)
                    self.requests.remove(chunk.request)

    def withdraw(self, dice: Dice) -> None:
        """A step has failed; who took part, now or later, waits again, or keeps its slots and tries again."""
        first = dice.below(len(self.plans))
        self.plans, ended = self.plans[:first], self.plans[first:]
        chunks = [chunk for plan in ended for chunk in plan.chunks]
        for chunk in chunks:
            self.slots.spoil(chunk.tables, chunk.positions)
        self.seen["withdrawn"] += len(chunks) > 0
        self.seen["withdrawn, several at once"] += sum(len(plan.chunks) > 0 for plan in ended) > 1
        lost = self.manager.withdraw(ended[0].step_id)
        self.seen["lost"] += len(lost)
        for chunk in reversed(chunks):  # the earliest has the last word
            if not chunk.is_freed:
                chunk.request.num_computed_tokens = chunk.positions.start
        to_free = set(lost)
        if dice.is_one_in(2):
            to_free |= {chunk.request.request_id for chunk in chunks if not chunk.is_freed}
        for request in self.requests:
            if request.request_id in to_free:
                self._take_out(request)

    def new_epoch(self) -> None:
        """The weights change: what was computed with others must not be found by those who are admitted from now on."""
        self.epoch = self.manager.new_epoch()
        self.seen["new epochs with holders"] += len(self.manager.holders()) > 0

    def reset(self) -> None:
        """Begin anew, as when all workers have lost what they had."""
        if self.plans:
            self.manager.withdraw(self.plans[0].step_id)
            self.plans.clear()
        for request in self.requests:
            self._take_out(request)
        assert self.manager.reset_prefix_cache()
        self.slots = Slots(self.groups)
