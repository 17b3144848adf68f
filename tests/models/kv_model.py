"""What the KV cache manager promises, said as plainly as it can be; slow, and meant to be right at a glance.

    free_order   next to be handed out | … | last       block ids, never the null block
    published    block id -> what it holds              in the order of publication
    tables       request id -> for each group, block ids by position
    step         the open one, with what it publishes if it is committed, and what goes back when it ends

There are no digests, tiers, counters or horizons here: what a block holds is written out as the whole sequence up to
its end, a reference is an occurrence in a list, and the two tiers are the two ends of one list. A freed block that is
published goes to the end of it, any other to its front. A hit is sought by trying every length.

Requests are the product's own, read as plain data; nothing else of the product is used.

>>> from tests.engine.builders import generate
>>> model, request = KVModel(6, [Group(2)]), generate(0, [7, 8, 9])
>>> model.allocate(request, 3)
[[1, 2]]
>>> model.free(request)
>>> model.free_order, model.lookup(request)
([2, 3, 4, 5, 1], ([[1]], 2))

Source: the behaviour of vLLM's KVCacheManager, with publication at commit instead of at allocation.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from mmcached.engine.steps.request import Request
from mmcached.wire.errors import LocalProtocolError

NULL = 0
Content = tuple[Hashable, ...]


def content_of(request: Request, end: int) -> Content:
    """Return what decides the KV of a block that ends here: tenant, adapter, tokens, and what stands in for some."""
    items = tuple((item.mm_hash, item.offset) for item in request.features if item.length and item.offset < end)
    rows = tuple(sorted((position, digest) for position, digest in request.prompt_embeds.items() if position < end))
    return request.tenant, request.lora, tuple(request.token_ids[:end]), items, rows


@dataclass(frozen=True)
class Group:
    """Layers that share one block table.

    Attributes:
        window: a token looks at that many tokens, itself among them.
        chunk: a token looks at those of its chunk of so many.
        state: instead of KV, a block holds what is known after its last token: at the end of each block ("all"), or
            where computing has stopped ("align").
    """

    block_size: int
    window: int | None = None
    chunk: int | None = None
    state: Literal["", "align", "all"] = ""

    def first_needed(self, position: int) -> int:
        """Return the first position that the token here, or a later one, looks at."""
        if self.window is not None:
            return max(0, position - self.window + 1)
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        return max(0, position - 1) if self.state else 0


@dataclass(eq=False)
class Step:
    """The open step; nothing of a request that was freed since, except what the workers have already.

    Attributes:
        took_part: ids of requests.
        reserved: block id -> who computes it, and what it holds then.
        fenced: lists of blocks that go back when the step has ended.
        writers: request id -> ids of the requests, itself included, on which it counts to compute something.
    """

    step_id: int
    is_launched: bool = False
    took_part: set[int] = field(default_factory=set)
    reserved: dict[int, tuple[int, Content]] = field(default_factory=dict)
    fenced: list[list[int]] = field(default_factory=list)
    writers: dict[int, set[int]] = field(default_factory=dict)


class KVModel:
    """Any groups of layers.

    Args:
        num_blocks: the null block included.
        use_eagle: the drafter needs what precedes the resume point, so a hit is one block shorter than what was found.
        num_hash_lookahead_tokens: so many tokens behind a block are part of what it holds; then no block is given up.
    """

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[Group],
        *,
        max_model_len: int = 1_000_000,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_hash_lookahead_tokens: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.groups = list(groups)
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.is_one_block_given_up = use_eagle and not num_hash_lookahead_tokens
        self.num_hash_lookahead_tokens = num_hash_lookahead_tokens
        self.free_order = list(range(1, num_blocks))
        self.published: dict[int, Content] = {}
        self.tables: dict[int, list[list[int]]] = {}
        self.step: Step | None = None
        self.out_of_epoch: set[int] = set()  # holders whose blocks stem from before the last `new_epoch`
        self.lost: set[int] = set()  # holders that can only be freed
        # By request and group: up to which block states were overwritten, since computing went on past a block's end.
        self.passed: dict[tuple[int, int], int] = {}

    # ---- requests

    def lookup(self, request: Request) -> tuple[list[list[int]], int]:
        """Return the blocks of the longest hit and its length. The last token is always computed, never found."""
        if self.enable_caching and not request.skip_reading_prefix_cache:
            most = request.num_tokens - max(1, self.num_hash_lookahead_tokens)
            for num_tokens in reversed(self._hit_lengths(most)):
                hit = [self._group_hit(request, index, num_tokens) for index in range(len(self.groups))]
                if None not in hit:
                    return [table for table in hit if table is not None], num_tokens
        return [[] for _ in self.groups], 0

    def _group_hit(self, request: Request, index: int, num_tokens: int) -> list[int] | None:
        """Return a group's blocks up to here, null where the next token does not look; None if one is missing."""
        group, needed = self.groups[index], self._needed(index, num_tokens)
        num_blocks, num_skipped = num_tokens // group.block_size, min(needed.start, num_tokens // group.block_size)
        if needed.stop * group.block_size >= request.num_tokens:
            return None
        found: list[int] = []
        for position in reversed(needed):
            block_id = self._find(self._content(request, index, position + 1))
            if block_id is None:
                return None
            found.insert(0, block_id)
        return [NULL] * num_skipped + found[: num_blocks - num_skipped]

    def _hit_lengths(self, num_tokens: int) -> range:
        """Return the lengths that a hit of at most so many tokens may have: all groups' blocks end there."""
        stride = math.lcm(*(group.block_size for group in self.groups))
        return range(stride, num_tokens + 1, stride)

    def _needed(self, index: int, num_tokens: int) -> range:
        """Return the positions of a group's blocks that a hit of so many tokens takes, at least one but for chunks."""
        group = self.groups[index]
        stop = num_tokens // group.block_size + (self.is_one_block_given_up and not group.state)
        most = stop if group.chunk else stop - 1  # before a chunk, nothing is needed
        return range(min(group.first_needed(num_tokens) // group.block_size, most), stop)

    def allocate(
        self,
        request: Request,
        num_new_tokens: int,
        hit: tuple[Sequence[Sequence[int]], int] | None = None,
        *,
        num_draft_tokens: int = 0,
        num_lookahead_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_external_tokens: int = 0,
    ) -> list[list[int]] | None:
        """Return the blocks newly handed out, or None if there are too few: then only windows have moved on."""
        request_id = request.request_id
        hit_tables, num_hit_tokens = hit or ([[] for _ in self.groups], 0)
        if num_new_tokens + num_hit_tokens + num_external_tokens < 1:
            raise ValueError("nothing is asked for")
        if self.step is not None and self.step.is_launched:
            raise LocalProtocolError("the workers have the step already")
        if num_hit_tokens and (request_id in self.tables or not self._is_there(request, hit_tables)):
            raise ValueError("a hit for a request that holds blocks, or that is not there any more")
        if request_id in self.lost:
            raise LocalProtocolError("it counted on what was withdrawn")

        num_tokens = request.num_computed_tokens + num_hit_tokens
        self._leave_behind(request_id, num_tokens)
        num_tokens += num_external_tokens + num_new_tokens
        num_slots = min(num_tokens + num_lookahead_tokens, self.max_model_len)
        if num_external_tokens and request_id not in self.tables:
            hit_tables = [
                self._without_passed(index, table, num_tokens - num_new_tokens, num_slots)
                for index, table in enumerate(hit_tables)
            ]

        held = self.tables.get(request_id, [[] for _ in self.groups])
        tables = [[*table, *hit_table] for table, hit_table in zip(held, hit_tables, strict=True)]
        num_delivered = num_tokens - num_new_tokens if num_external_tokens and request_id not in self.tables else 0
        growth = [
            self._growth(group, table, num_slots, min(num_tokens, self.max_model_len), num_delivered)
            for group, table in zip(self.groups, tables, strict=True)
        ]
        num_missing = sum(each is None for part in growth for each in part)
        hit_ids = [block_id for table in hit_tables for block_id in table]
        revived = [block_id for block_id in hit_ids if block_id in self.free_order]
        if num_missing + len(revived) > len(self.free_order) or self._is_state_reserved(hit_tables):
            return None

        self.free_order = [block_id for block_id in self.free_order if block_id not in revived]
        new = [[self._take() if each is None else each for each in part] for part in growth]
        self.tables[request_id] = [table + fresh for table, fresh in zip(tables, new, strict=True)]
        if self.step is not None:
            self.step.took_part.add(request_id)
            writers = {self.step.reserved[block_id][0] for block_id in hit_ids if block_id in self.step.reserved}
            if writers:
                self.step.writers[request_id] = writers
        self._note_passed(request, num_tokens - num_new_tokens, num_tokens - num_draft_tokens)
        if not delay_cache_blocks:
            # Only what is known now: another token may take the place of a guess before the step is committed.
            full = self._full_blocks(request, num_tokens - num_draft_tokens, num_tokens)
            if self.step is not None:
                self.step.reserved |= {block_id: (request_id, content) for block_id, content in full.items()}
            else:
                self.published |= full
        return new

    def _growth(
        self, group: Group, table: Sequence[int], num_slots: int, num_tokens: int, num_delivered: int
    ) -> list[int | None]:
        """Return what is put behind a table: None for a new block, null where no state will be."""
        if group.state != "align":
            return [None] * (-(-num_slots // group.block_size) - len(table))
        states = {-(-num_delivered // group.block_size) - 1, -(-num_tokens // group.block_size) - 1}
        return [None if each in states else NULL for each in range(len(table), max(states) + 1)]

    def _is_state_reserved(self, hit_tables: Sequence[Sequence[int]]) -> bool:
        """Say whether a hit takes a state that is only there when the step has ended."""
        reserved = self.step.reserved if self.step is not None else {}
        pairs = zip(self.groups, hit_tables, strict=True)
        return any(block_id in reserved for group, table in pairs if group.state for block_id in table)

    def _note_passed(self, request: Request, start: int, end: int) -> None:
        for index, group in enumerate(self.groups):
            position = start // group.block_size
            is_past = start % group.block_size and min(end, request.num_tokens) > (position + 1) * group.block_size
            if group.state == "align" and is_past:
                self.passed[request.request_id, index] = position

    def _without_passed(self, index: int, table: Sequence[int], num_computed: int, num_slots: int) -> list[int]:
        """Return a group's part of a hit, with null blocks for what nobody looks at behind what is delivered."""
        group = self.groups[index]
        num_blocks = min(group.first_needed(num_computed) // group.block_size, -(-num_slots // group.block_size))
        return [NULL] * num_blocks + list(table[num_blocks:])

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish what is full and neither published nor reserved, whether or not another block holds the same."""
        self.published |= self._full_blocks(request, num_computed_tokens, num_computed_tokens)

    def free(self, request: Request) -> None:
        """Finish, abort or preempt: all blocks go back, the last position first, group after group.

        If a launched step uses them, when that has ended. What it reserved there is published all the same; what it
        reserved in a step that is being built is not.
        """
        request_id, step = request.request_id, self.step
        if self.sharers(request_id):
            raise LocalProtocolError("others have found what it is going to compute")
        if step is not None:
            step.writers.pop(request_id, None)
            if not step.is_launched:
                step.took_part.discard(request_id)
                step.reserved = {each: held for each, held in step.reserved.items() if held[0] != request_id}
        # Group after group, so that of the unpublished the last group's come first.
        for index in range(len(self.groups)):
            self.passed.pop((request_id, index), None)
        for table in self.tables.pop(request_id, []):
            self._give_back_of(request_id, table[::-1])
        if step is not None:
            step.took_part.discard(request_id)
        self.out_of_epoch.discard(request_id)
        self.lost.discard(request_id)

    def sharers(self, request_id: int) -> list[int]:
        """Return who counts on what a request would compute in the step that is being built."""
        if self.step is None or self.step.is_launched:
            return []
        return [who for who, writers in self.step.writers.items() if request_id in writers and who != request_id]

    def reset(self) -> bool:
        """Forget everything published, unless a block is held. The free order stays."""
        if len(self.free_order) < self.num_blocks - 1:
            return False
        self.published.clear()
        return True

    def new_epoch(self) -> None:
        """Forget everything published. Who holds blocks keeps them, and never publishes any of them."""
        self.published.clear()
        if self.step is not None:
            self.step.reserved.clear()
        self.out_of_epoch = set(self.tables)

    # ---- steps

    def begin_step(self, step_id: int) -> None:
        if self.step is not None:
            raise LocalProtocolError("a step is open")
        self.step = Step(step_id)

    def launch_step(self, step_id: int) -> None:
        """The workers have the step."""
        if self.step is None or self.step.step_id != step_id or self.step.is_launched:
            raise LocalProtocolError("not this step")
        self.step.is_launched = True

    def commit(self, step_id: int) -> None:
        """The step was computed."""
        step = self._opened(step_id)
        for block_id, (_, content) in step.reserved.items():
            self.published.setdefault(block_id, content)
        self._end(step)

    def withdraw(self, step_id: int) -> list[int]:
        """The step was not computed. Return who counted on that and can only be freed, in the order of scheduling.

        The others keep their slots, with nothing in them. Where there are states, all of the step are lost.
        """
        step = self._opened(step_id)
        lost = list(step.writers)
        if any(group.state for group in self.groups):
            lost += [each for each in self.tables if each in step.took_part and each not in lost]
        self.lost |= set(lost)
        self._end(step)
        return lost

    # ---- looking in

    def ref_cnt(self, block_id: int) -> int:
        lists = [table for tables in self.tables.values() for table in tables]
        lists += self.step.fenced if self.step is not None else []
        return sum(block_ids.count(block_id) for block_ids in lists)

    def num_common_prefix_blocks(self, request: Request, num_running: int) -> list[int]:
        """Return for each group how many leading blocks all running requests share; with a window none."""
        return [
            0
            if group.window or group.chunk or group.state
            else len(list(takewhile(lambda each: self.ref_cnt(each) == num_running, table)))
            for group, table in zip(self.groups, self.tables[request.request_id], strict=True)
        ]

    # ---- inside

    def _content(self, request: Request, index: int, num_blocks: int) -> Content | None:
        """Return what the last of so many blocks of a group holds, None if this is not known yet."""
        end = num_blocks * self.groups[index].block_size + self.num_hash_lookahead_tokens
        return (index, *content_of(request, end)) if end <= request.num_tokens else None

    def _find(self, content: Content | None) -> int | None:
        """Return the block that was the first to be published with this content, or that a step is going to fill."""
        found = (block_id for block_id, held in [*self.published.items(), *self._reserved()] if held == content)
        return next(found, None)

    def _reserved(self) -> list[tuple[int, Content]]:
        return [(block_id, held) for block_id, (_, held) in self.step.reserved.items()] if self.step is not None else []

    def _is_there(self, request: Request, hit_tables: Sequence[Sequence[int]]) -> bool:
        """Say whether a hit can still be taken: each of its blocks holds what it did, or will."""
        known = [*self.published.items(), *self._reserved()]
        return all(
            block_id == NULL or (block_id, self._content(request, index, number)) in known
            for index, table in enumerate(hit_tables)
            for number, block_id in enumerate(table, 1)
        )

    def _full_blocks(self, request: Request, num_computed_tokens: int, most_tokens: int) -> dict[int, Content]:
        """Return which of a request's blocks are full and not published or reserved yet, with what they hold.

        Only those that a hit within so many tokens can take.
        """
        if not self.enable_caching or request.request_id in self.out_of_epoch:
            return {}
        full, taken = {}, {NULL, *self.published, *dict(self._reserved())}
        for index, table in enumerate(self.tables[request.request_id]):
            block_size = self.groups[index].block_size
            ranges = [self._needed(index, length) for length in self._hit_lengths(most_tokens)]
            needed = {each for positions in ranges for each in positions}
            if self.groups[index].chunk and ranges:
                needed = set(range(ranges[-1].stop))  # all of them, as in full attention
            needed -= set(range(1 + self.passed.get((request.request_id, index), -1)))
            for position in range(min(len(table), min(num_computed_tokens, request.num_tokens) // block_size)):
                content = self._content(request, index, position + 1)
                if content is not None and position in needed and table[position] not in taken:
                    full[table[position]] = content
        return full

    def _take(self) -> int:
        block_id = self.free_order.pop(0)
        self.published.pop(block_id, None)
        return block_id

    def _leave_behind(self, request_id: int, num_computed_tokens: int) -> None:
        """Give back what later tokens do not look at, and let the null block stand in its place."""
        for group, table in zip(self.groups, self.tables.get(request_id, []), strict=False):
            skipped = table[: group.first_needed(num_computed_tokens) // group.block_size]
            table[: len(skipped)] = [NULL] * len(skipped)
            if any(skipped):
                if self.step is not None and request_id in self.step.took_part:
                    self.step.writers.setdefault(request_id, set()).add(request_id)
                self._give_back_of(request_id, skipped[::-1])

    def _opened(self, step_id: int) -> Step:
        if self.step is None or self.step.step_id != step_id:
            raise LocalProtocolError("not this step")
        return self.step

    def _end(self, step: Step) -> None:
        """Close the step, and give back what is behind its fence."""
        while step.fenced:
            self._give_back(step.fenced.pop(0))
        self.step = None

    def _give_back_of(self, request_id: int, block_ids: list[int]) -> None:
        """Give back blocks of a request, when the step has ended in which it takes part, or now."""
        if self.step is not None and request_id in self.step.took_part:
            self.step.fenced.append(block_ids)
        else:
            self._give_back(block_ids)

    def _give_back(self, block_ids: Sequence[int]) -> None:
        """Free those that nothing names any more; the first given is the first of its kind to be handed out."""
        unheld = [block_id for block_id in block_ids if block_id != NULL and self.ref_cnt(block_id) == 0]
        front = [block_id for block_id in unheld if block_id not in self.published]
        back = [block_id for block_id in unheld if block_id in self.published]
        self.free_order = front + self.free_order + back
