"""What a pool of so many blocks could find: exact LRU over blocks alone, and the best that any policy can do.

Both hold nothing for running requests: between two prompts, all blocks are theirs to keep or to give up. A block is
found if all blocks before it are (the prefix rule) and it is not the prompt's last (the last token is always computed).

LRU       gives up tails before heads, like a request that is freed
Belady    knows all prompts to come. After each prompt it keeps, of what was there and what the prompt brought, the
          blocks whose next use is nearest; of one prompt's, its head. A block that a prompt will bring anew without
          finding it has no next use before that, and is given up at once

Why Belady is the optimum: leave the prefix rule out. Then a block found is a span kept from the last prompt that
brought it to the one that finds it, and no more spans may lie over any gap between prompts than there are blocks. To
keep as many spans as possible, giving up the one that ends last is optimal. And this choice obeys the prefix rule by
itself: when a tail is found, its head is wanted by the same prompt, and whoever brought the tail brought the head. So
the head's span began no earlier and ends at the same time, and of such spans the tail's is given up first. So no policy
under the rule finds more, not even one that leaves new blocks out; one that holds blocks for running requests can only
find less. It is a bound for blocks found; the best policy for time or for requests would keep others.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Sequence

from trace_replay.prompts import Prompt

NEVER = 1 << 40


def ideal_lru(prompts: Sequence[Prompt], num_blocks: int) -> int:
    """Return how many blocks of the counted prompts are found."""
    cached: OrderedDict[int, None] = OrderedDict()
    found = 0
    for prompt in prompts:
        found += _num_found(prompt, cached)
        for block_id in reversed(prompt.block_ids[: prompt.num_full]):
            cached[block_id] = None
            cached.move_to_end(block_id)
        while len(cached) > num_blocks:
            cached.popitem(last=False)
    return found


def belady(prompts: Sequence[Prompt], num_blocks: int) -> int:
    """Return how many blocks of the counted prompts are found."""
    cached: dict[int, int] = {}  # block: the prompt of its next use
    furthest: list[tuple[int, int, int]] = []  # (-next use, -position, block), perhaps out of date
    found = 0
    for prompt, next_uses in zip(prompts, _next_uses(prompts), strict=True):
        found += _num_found(prompt, cached)
        for position, next_use in enumerate(next_uses):
            block_id = prompt.block_ids[position]
            if next_use == NEVER:
                cached.pop(block_id, None)
            else:
                cached[block_id] = next_use
                heapq.heappush(furthest, (-next_use, -position, block_id))
        while len(cached) > num_blocks:
            next_use, _, block_id = heapq.heappop(furthest)
            if cached.get(block_id) == -next_use:
                del cached[block_id]
    return found


def num_counted(prompts: Sequence[Prompt]) -> int:
    """Return how many blocks the counted prompts have."""
    return sum(len(prompt.block_ids) for prompt in prompts if prompt.is_counted)


def _num_found(prompt: Prompt, cached: Container[int]) -> int:
    if not prompt.is_counted:
        return 0
    for position, block_id in enumerate(prompt.block_ids[:-1]):
        if block_id not in cached:
            return position
    return len(prompt.block_ids) - 1


def _next_uses(prompts: Sequence[Prompt]) -> list[list[int]]:
    """Return for each full block of each prompt the index of the next prompt that would find it.

    `NEVER` if none does, or if another prompt brings it before that: as its last block, which is computed in any case,
    or without being counted. Nothing is worth keeping for these.
    """
    next_uses: list[list[int]] = []
    block_to_next: dict[int, int] = {}
    for index in range(len(prompts) - 1, -1, -1):
        prompt = prompts[index]
        brought = prompt.block_ids[: prompt.num_full]
        next_uses.append([block_to_next.get(block_id, NEVER) for block_id in brought])
        block_to_next.update(dict.fromkeys(brought, NEVER))
        if prompt.is_counted:
            block_to_next.update(dict.fromkeys(prompt.block_ids[:-1], index))
    return next_uses[::-1]
