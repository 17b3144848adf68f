"""A scheduler without a policy and a worker that remembers: which sequence each KV slot holds, up to its position.

    build: admit, run, preempt, abort  ->  send: preempt, abort  ->  commit: all its chunks are written
                                                                     withdraw: anything may be in their slots

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
from tests.engine.kv.integrity import check_kv
from tests.models.kv_model import NULL, Content, Group, content_of

MAX_ALIVE = 5
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
    """The open step; nothing is scheduled in it after it was sent."""

    step_id: int
    chunks: list[Chunk]
    is_sent: bool = False


class BareEngine:
    """Leads one manager through steps.

    Attributes:
        requests: those that are neither finished nor aborted.
        plan: the step that has not ended, if any.
        seen: how often what happened.
    """

    def __init__(self, manager: KVCacheManager, groups: Sequence[Group]) -> None:
        self.manager = manager
        self.groups = groups
        self.slots = Slots(groups)
        self.requests: list[Request] = []
        self.plan: Plan | None = None
        self.epochs: dict[int, int] = {}  # with whose weights a request is computed
        self.num_steps = self.num_added = self.epoch = 0
        self.seen: Counter[str] = Counter()
        self.begin()

    @property
    def building(self) -> Plan | None:
        return self.plan if self.plan is not None and not self.plan.is_sent else None

    @property
    def chunks(self) -> list[Chunk]:
        return self.plan.chunks if self.plan is not None else []

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
        elif action == "begin" and self.plan is None:
            self.begin()
        elif action == "send" and self.building is not None:
            self.send()
        elif action == "commit" and self.plan is not None and self.plan.is_sent:
            self.commit()
        elif action == "withdraw" and self.plan is not None:
            self.withdraw(dice)
        elif action == "reset":
            self.reset()
        elif action == "epoch":
            self.new_epoch()
        check_kv(self.manager)

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
        for chunk in self.chunks:
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
        in_use = {block_id for chunk in self.chunks for table in chunk.tables for block_id in table} - {NULL}
        handed_out = {block_id for table in new.get_block_ids() for block_id in table}
        assert not in_use & handed_out, f"blocks {in_use & handed_out} are still in use"
        request.num_computed_tokens = end
        tables = self.manager.get_block_ids(request.request_id)
        self.building.chunks.append(Chunk(request, tables, range(start, end), self.epochs[request.request_id]))

    def preempt(self, request: Request) -> None:
        takes_part = any(chunk.request is request and not chunk.is_freed for chunk in self.chunks)
        self.seen["victims of their own step"] += takes_part and self.building is not None
        self.seen["freed in flight"] += takes_part and self.building is None
        self.seen["preempted later"] += not takes_part
        self._take_out(request)

    def abort(self, request: Request) -> None:
        """End a request. What has been sent is written all the same, to blocks that nobody else has meanwhile."""
        self.preempt(request)
        self.requests.remove(request)

    def _take_out(self, request: Request) -> None:
        """Free a request; if others count on what it would have computed, all that were scheduled after it first."""
        try:
            self.manager.free(request)
        except LocalProtocolError:
            self.seen["freed with others"] += 1
            number = next(index for index, chunk in enumerate(self.chunks) if chunk.request is request)
            for chunk in self.chunks[:number:-1]:
                self._take_out(chunk.request)
            self.manager.free(request)
        request.num_computed_tokens = 0
        if self.plan is not None and not self.plan.is_sent:
            self.plan.chunks = [chunk for chunk in self.plan.chunks if chunk.request is not request]
        for chunk in self.chunks:
            chunk.is_freed |= chunk.request is request

    # ---- steps

    def begin(self) -> None:
        self.num_steps += 1
        self.plan = Plan(self.num_steps, [])
        self.manager.begin_step(self.num_steps)

    def send(self) -> None:
        assert self.building is not None
        self.manager.launch_step(self.building.step_id)
        self.building.is_sent = True

    def commit(self) -> None:
        """Run the step: write all chunks, each after what it builds on; some requests get a token or end."""
        assert self.plan is not None
        plan, self.plan = self.plan, None
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
        """The step has failed; who took part waits again, or keeps its slots and tries again."""
        assert self.plan is not None
        plan, self.plan = self.plan, None
        for chunk in plan.chunks:
            self.slots.spoil(chunk.tables, chunk.positions)
        self.seen["withdrawn"] += len(plan.chunks) > 0
        lost = self.manager.withdraw(plan.step_id)
        self.seen["lost"] += len(lost)
        present = [chunk.request for chunk in plan.chunks if not chunk.is_freed]
        for chunk in plan.chunks:
            if not chunk.is_freed:
                chunk.request.num_computed_tokens = chunk.positions.start
        is_freed = dice.is_one_in(2)
        for request in self.requests:
            if request.request_id in lost or (is_freed and request in present):
                self._take_out(request)

    def new_epoch(self) -> None:
        """The weights change: what was computed with others must not be found by those who are admitted from now on."""
        self.epoch = self.manager.new_epoch()
        self.seen["new epochs with holders"] += len(self.manager.holders()) > 0

    def reset(self) -> None:
        """Begin anew, as when all workers have lost what they had."""
        if self.plan is not None:
            self.manager.withdraw(self.plan.step_id)
            self.plan = None
        for request in self.requests:
            self._take_out(request)
        assert self.manager.reset_prefix_cache()
        self.slots = Slots(self.groups)
