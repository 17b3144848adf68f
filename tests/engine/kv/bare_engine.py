"""A scheduler without a policy and a worker that remembers: which sequence each KV slot holds, up to its position.

    schedule: admit, run, preempt, abort   ->  send  ->  abort  ->  commit: all chunks are written
                                                                    withdraw: anything may be in their slots

Says nothing of which blocks the manager should choose. Whatever is asked for is done, if it can be done now; each hit
is held against the slots at admission, and all that a chunk builds on when the step runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mmcached.engine import KVCacheBlocks, KVCacheManager, Request
from tests.engine.builders import generate
from tests.models.kv_model import Content, content_of

BLOCK = 4


class Slots:
    """What a worker's KV slots hold."""

    def __init__(self) -> None:
        self._written: dict[tuple[int, int], Content] = {}

    def write(self, request: Request, table: Sequence[int], positions: range) -> None:
        for position in positions:
            index, offset = divmod(position, BLOCK)
            self._written[table[index], offset] = content_of(request, position + 1)

    def spoil(self, table: Sequence[int], positions: range) -> None:
        """A step has failed somewhere: nobody may count on what is there now."""
        for position in positions:
            index, offset = divmod(position, BLOCK)
            self._written.pop((table[index], offset), None)

    def check(self, request: Request, table: Sequence[int], num_tokens: int) -> None:
        """Fail unless each of the first slots holds what this request would have computed there.

        Raises:
            AssertionError: one does not.
        """
        for position in range(num_tokens):
            index, offset = divmod(position, BLOCK)
            written = self._written.get((table[index], offset))
            assert written == content_of(request, position + 1), f"{request}: block {table[index]} holds {written}"


@dataclass
class Chunk:
    """A request's part in a step; the table is the one that was sent, whatever becomes of the request."""

    request: Request
    table: list[int]
    positions: range


class BareEngine:
    """Leads one manager through steps.

    Attributes:
        requests: those that are neither finished nor aborted.
        chunks: the parts of the open step; after `send` nothing is scheduled until it has ended.
        seen: how often what happened.
    """

    def __init__(self, manager: KVCacheManager) -> None:
        self.manager = manager
        self.slots = Slots()
        self.requests: list[Request] = []
        self.chunks: list[Chunk] = []
        self.is_sent = False
        self.num_steps = self.num_added = 0
        self.seen: Counter[str] = Counter()
        manager.begin_step(0)

    def do(self, action: str, number: int) -> None:
        """Do it if it can be done now."""
        if action == "add" and len(self.requests) < 5:
            length, family = 1 + number % 24, number // 24 % 2
            self.add([position if position < 5 else family * 100 + position for position in range(length)])
        elif action == "send":
            self.is_sent = True
        elif action == "commit" and self.is_sent:
            self.commit()
        elif action == "withdraw" and self.is_sent:
            self.withdraw(number)
        elif action == "reset" and not self.is_sent:
            self.reset()
        elif self.requests:
            self._do_to(self.requests[number % len(self.requests)], action, 1 + number // 5 % 16)
        self.manager.check_integrity()

    def _do_to(self, request: Request, action: str, num_tokens: int) -> None:
        is_held = request.request_id in self.manager.holders()
        if action == "abort":
            self.abort(request)
        elif self.is_sent:
            return
        elif action == "admit" and not is_held:
            self.admit(request, num_tokens)
        elif action == "run" and is_held and not self._takes_part(request):
            self.schedule(request, num_tokens)
        elif action == "preempt" and is_held:
            self.preempt(request)

    def _takes_part(self, request: Request) -> bool:
        return any(chunk.request is request for chunk in self.chunks)

    # ---- scheduling

    def add(self, token_ids: Sequence[int]) -> Request:
        request = generate(self.num_added, token_ids)
        self.num_added += 1
        self.requests.append(request)
        return request

    def admit(self, request: Request, max_tokens: int) -> None:
        hit, num_hit_tokens = self.manager.get_computed_blocks(request)
        self.slots.check(request, hit.get_block_ids()[0], num_hit_tokens)
        self.seen["hit"] += num_hit_tokens > 0
        self.schedule(request, max_tokens, num_hit_tokens, hit)

    def schedule(
        self, request: Request, max_tokens: int, num_hit_tokens: int = 0, hit: KVCacheBlocks | None = None
    ) -> None:
        start = request.num_computed_tokens + num_hit_tokens
        end = min(request.num_tokens, start + max_tokens)
        if self.manager.allocate_slots(request, end - start, num_hit_tokens, hit) is None:
            self.seen["refused"] += 1
            return
        request.num_computed_tokens = start
        (table,) = self.manager.get_block_ids(request.request_id)
        self.chunks.append(Chunk(request, table, range(start, end)))

    def preempt(self, request: Request) -> None:
        self.seen["victims of their own step" if self._takes_part(request) else "preempted later"] += 1
        self._take_out(request)

    def abort(self, request: Request) -> None:
        """End a request. What has been sent is written all the same, to blocks that are free by then."""
        if self.is_sent:
            self.seen["aborted in flight"] += self._takes_part(request)
            self.manager.free(request)
        else:
            self._take_out(request)
        self.requests.remove(request)

    def reset(self) -> None:
        """Begin anew, as when all workers have lost what they had."""
        for request in self.requests:
            self._take_out(request)
        self.manager.withdraw(self.num_steps)
        assert self.manager.reset_prefix_cache()
        self.slots = Slots()
        self._begin()

    def _take_out(self, request: Request) -> None:
        self.chunks = [chunk for chunk in self.chunks if chunk.request is not request]
        self.manager.free(request)
        request.num_computed_tokens = 0

    # ---- the end of a step

    def commit(self) -> None:
        """Write all chunks, each after what its request has computed; those who know all their tokens get another."""
        for chunk in self.chunks:
            self.slots.check(chunk.request, chunk.table, chunk.positions.start)
            self.slots.write(chunk.request, chunk.table, chunk.positions)
        self.manager.commit(self.num_steps)
        for chunk in self.chunks:
            request = chunk.request
            if request in self.requests:
                request.num_computed_tokens = chunk.positions.stop
                if request.num_computed_tokens == request.num_tokens:
                    request.append_output_token(request.num_tokens)
        self._begin()

    def withdraw(self, number: int) -> None:
        """The step has failed; by the number, who took part waits again, or keeps its slots and tries again."""
        for chunk in self.chunks:
            self.slots.spoil(chunk.table, chunk.positions)
        self.seen["withdrawn"] += len(self.chunks) > 0
        self.manager.withdraw(self.num_steps)
        for chunk in self.chunks if number % 2 else ():
            self.manager.free(chunk.request)
            chunk.request.num_computed_tokens = 0
        self._begin()

    def _begin(self) -> None:
        self.chunks, self.is_sent = [], False
        self.num_steps += 1
        self.manager.begin_step(self.num_steps)
