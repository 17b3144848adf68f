"""What the KV cache manager promises, said as plainly as it can be; slow, and meant to be right at a glance.

    free_order   next to be handed out | … | last       block ids, never the null block
    published    block id -> what it holds              in the order of publication
    tables       request id -> block ids by position
    reserved     request id -> request, tokens that it has computed if the open step is committed

There are no digests, tiers, counters or horizons here: what a block holds is written out as the whole sequence up to
its end, a reference is an occurrence in a table, and the two tiers are the two ends of one list. A freed block that is
published goes to the end of it, any other to its front.

Requests are the product's own, read as plain data; nothing else of the product is used. `WindowModel` is the second
kind of group, which has no counterpart in the product yet: a block that its window has left behind goes back, and the
null block stands in its place.

>>> from tests.engine.builders import generate
>>> model, request = KVModel(6, 2), generate(0, [7, 8, 9])
>>> model.allocate(request, 3)
[1, 2]
>>> model.free(request)
>>> model.free_order, model.lookup(request)
([2, 3, 4, 5, 1], [1])

Source: the behaviour of vLLM's KVCacheManager, with publication at commit instead of at allocation.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import takewhile

from mmcached.engine.request import Request

NULL = 0
Content = tuple[Hashable, ...]


def content_of(request: Request, end: int) -> Content:
    """Return what decides the KV of a block that ends here: tenant, adapter, tokens, and what stands in for some."""
    items = tuple((item.mm_hash, item.offset) for item in request.features if item.length and item.offset < end)
    rows = tuple(sorted((position, digest) for position, digest in request.prompt_embeds.items() if position < end))
    return request.tenant, request.lora, tuple(request.token_ids[:end]), items, rows


class KVModel:
    """One group of layers with full attention.

    Args:
        num_blocks: the null block included.
        use_eagle: recompute the last block of every hit, because the drafter needs what precedes the resume point.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_caching: bool = True, use_eagle: bool = False
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_caching = enable_caching
        self.use_eagle = use_eagle
        self.free_order = list(range(1, num_blocks))
        self.published: dict[int, Content] = {}
        self.tables: dict[int, list[int]] = {}
        self.reserved: dict[int, tuple[Request, int]] = {}
        self.is_step_open = False

    # ---- requests

    def lookup(self, request: Request) -> list[int]:
        """Return the blocks of the longest hit. The last token is always computed, so its block is never among them."""
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return []
        ends = range(self.block_size, request.num_tokens, self.block_size)
        return self.longest_hit([self._find(content_of(request, end)) for end in ends])

    def longest_hit(self, found: Sequence[int | None]) -> list[int]:
        """Choose from what was found for each position, None where nothing was. All up to the hit's end are needed."""
        hit = [block_id for block_id in takewhile(lambda block_id: block_id is not None, found) if block_id is not None]
        return hit[:-1] if self.use_eagle else hit

    def allocate(
        self, request: Request, num_new_tokens: int, hit: Sequence[int] = (), *, num_lookahead_tokens: int = 0
    ) -> list[int] | None:
        """Return the blocks newly handed out, or None if there are too few: then only a window has moved on."""
        if num_new_tokens < 1:
            raise ValueError("no new tokens")
        if hit and self.tables.get(request.request_id):
            raise ValueError("a hit for a request that holds blocks")
        num_computed = request.num_computed_tokens + len(hit) * self.block_size
        self._leave_behind(request, num_computed)

        table = [*self.tables.get(request.request_id, []), *hit]
        num_slots = num_computed + num_new_tokens + num_lookahead_tokens
        num_missing = max(0, -(-num_slots // self.block_size) - len(table))
        revived = [block_id for block_id in hit if block_id in self.free_order]
        if num_missing + len(revived) > len(self.free_order):
            return None

        for block_id in revived:
            self.free_order.remove(block_id)
        new, self.free_order = self.free_order[:num_missing], self.free_order[num_missing:]
        for block_id in new:
            self.published.pop(block_id, None)
        self.tables[request.request_id] = [*table, *new]

        # Tokens that are not known yet are a drafter's guesses, and stay so for what this call has reserved.
        num_final = min(num_computed + num_new_tokens, request.num_tokens)
        if self.is_step_open:
            self.reserved[request.request_id] = request, num_final
        else:
            self.cache_blocks(request, num_final)
        return new

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish what is full and not yet published, whether or not another block holds the same."""
        if not self.enable_caching:
            return
        num_full = min(num_computed_tokens, request.num_tokens) // self.block_size
        for index, block_id in enumerate(self.tables[request.request_id][:num_full]):
            if block_id != NULL and block_id not in self.published:
                self.published[block_id] = content_of(request, (index + 1) * self.block_size)

    def free(self, request: Request) -> None:
        """Finish, abort or preempt: all blocks go back, the last position first; nothing of it is reserved any more."""
        self.reserved.pop(request.request_id, None)
        self._give_back(reversed(self.tables.pop(request.request_id, [])))

    def reset(self) -> bool:
        """Forget everything published, unless a block is held. The free order stays."""
        if len(self.free_order) < self.num_blocks - 1:
            return False
        self.published.clear()
        return True

    # ---- steps

    def begin_step(self) -> None:
        self.is_step_open = True

    def commit(self) -> None:
        for request, num_computed_tokens in self.reserved.values():
            self.cache_blocks(request, num_computed_tokens)
        self.withdraw()

    def withdraw(self) -> None:
        self.reserved.clear()
        self.is_step_open = False

    # ---- looking in

    def ref_cnt(self, block_id: int) -> int:
        return sum(table.count(block_id) for table in self.tables.values())

    # ---- inside

    def _find(self, content: Content) -> int | None:
        """Return the block that was the first to be published with this content, of those that still are."""
        return next((block_id for block_id, held in self.published.items() if held == content), None)

    def _give_back(self, block_ids: Iterable[int]) -> None:
        """Free those that no table names any more; the first given is the first of its kind to be handed out."""
        unheld = [block_id for block_id in block_ids if block_id != NULL and self.ref_cnt(block_id) == 0]
        front = [block_id for block_id in unheld if block_id not in self.published]
        back = [block_id for block_id in unheld if block_id in self.published]
        self.free_order = front + self.free_order + back

    def _leave_behind(self, request: Request, num_computed_tokens: int) -> None:
        """Give back what later tokens do not look at: with full attention nothing."""


class WindowModel(KVModel):
    """One group of layers in which a token looks at the last `window` tokens, itself among them."""

    def __init__(self, num_blocks: int, block_size: int, *, window: int, use_eagle: bool = False) -> None:
        super().__init__(num_blocks, block_size, use_eagle=use_eagle)
        self.window = window

    def longest_hit(self, found: Sequence[int | None]) -> list[int]:
        """Only the last blocks of a hit must be there, as many as the next token looks at; all, if there are fewer."""
        num_needed = -(-(self.window - 1) // self.block_size) + self.use_eagle
        for end in range(len(found), 0, -1):
            start = max(0, end - num_needed)
            needed = [block_id for block_id in found[start:end] if block_id is not None]
            if len(needed) == end - start:
                hit = [NULL] * start + needed
                return hit[:-1] if self.use_eagle else hit
        return []

    def _leave_behind(self, request: Request, num_computed_tokens: int) -> None:
        table = self.tables.get(request.request_id, [])
        num_skipped = max(0, num_computed_tokens - self.window + 1) // self.block_size
        skipped = table[:num_skipped]
        table[: len(skipped)] = [NULL] * len(skipped)
        self._give_back(reversed(skipped))
