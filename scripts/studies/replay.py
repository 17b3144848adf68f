"""Replays a recorded service: the share of its prompts that a KV cache finds, by pool size and eviction policy.

hit rate        share of all prompt blocks that a lookup finds, in percent. A prompt's last block counts as asked for
                and is never found (the last token is always computed), so even what holds everything stays below the
                share of repeated blocks; of long prompts that are mixed in, nothing is counted
infinite        everything that ever came is still there
Belady          knows the future; no policy finds more
ideal LRU       exact LRU over blocks; nothing is held for running requests
LRU, segmented  the real manager with its eviction policies, with requests that run

as recorded     the trace alone
steady scan     after every 10 prompts a one-off one of 250 blocks (128k tokens), which is half of all blocks if prompts
                have 24 blocks on average
scan bursts     after every 200 prompts 40 such, as a batch job would send

A trace is a file in the Mooncake format: `traces`.

**The real manager** gets one token id per block of the trace and has `block_size=1`: the same as 512 tokens in blocks
of 512. The manager sees content through digests only, and each digest covers the digest before it, so ids that stand
behind equal ids get equal digests and others do not, whatever number of tokens a block stands for. The last-token rule
gives the same, too: of `n` blocks the first `n - 1` can be found, full or not, since
`(num_tokens - 1) // 512 == n - 1 == (n - 1) // 1`. A tail that is not full gets its slots, but is not published.

Requests run `num_running` at a time, first come, first served: the next one begins when the oldest one ends, or earlier
if there is room for it neither in free blocks nor in what can be evicted; then the oldest ones end until there is. One
at a time means that blocks are freed as soon as they are computed. A prompt larger than the pool is turned away. What
requests generate takes no slots: no trace says what it was.

**The ideals.** `ideal_lru` and `belady` hold nothing for running requests: between two prompts, all blocks are
theirs to keep or to give up. A block is found if all blocks before it are (the prefix rule) and it is not the prompt's
last (the last token is always computed).

ideal_lru  gives up tails before heads, like a request that is freed
belady     knows all prompts to come. After each prompt it keeps, of what was there and what the prompt brought, the
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

import argparse
import heapq
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcached.compat.kv_cache_manager import KVCacheManager
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.steps.request import Request
from scripts.bench.harness import Row, print_rows, print_table
from scripts.studies.traces import BLOCK_TOKENS, Prompt, read_trace, with_scans

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000, 100_000)
QUICK_SIZES = (2_000, 20_000)
NUM_RUNNING = (1, 32)  # one at a time: freed at once
SCAN_BLOCKS = 250
OURS = {"LRU": "lru", "segmented LRU": "segmented_lru"}
PEERS = ("infinite", "Belady", "ideal LRU")

TRAFFIC: dict[str, Callable[[list[Prompt]], list[Prompt]]] = {
    "as recorded": lambda prompts: prompts,
    "steady scan": lambda prompts: with_scans(prompts, every=10, num_scans=1, num_blocks=SCAN_BLOCKS),
    "scan bursts": lambda prompts: with_scans(prompts, every=200, num_scans=40, num_blocks=SCAN_BLOCKS),
}


@dataclass(frozen=True, slots=True)
class Curves:
    """Hit rates in percent, by the name of who has them, for each pool size.

    Attributes:
        sizes: blocks, the null block not included.
    """

    traffic: str
    num_running: int
    sizes: Sequence[int]
    rates: dict[str, list[float]]

    @property
    def title(self) -> str:
        running = f"{self.num_running} requests at a time" if self.num_running > 1 else "freed at once"
        return f"{self.traffic}, {running}"


def measure(prompts: list[Prompt], sizes: Sequence[int], *, is_quick: bool) -> list[Curves]:
    """Return the curves of all traffic; quick ones have many requests at a time only, and no pool for everything."""
    measured = []
    for traffic, mix in TRAFFIC.items():
        started = time.monotonic()
        mixed = mix(prompts)
        everything = sum(len(prompt.block_ids) for prompt in mixed)
        all_sizes = sorted({*sizes} if is_quick else {everything, *(size for size in sizes if size < everything)})
        measured += curves_of(traffic, mixed, all_sizes, NUM_RUNNING[-1:] if is_quick else NUM_RUNNING)
        print(f"{traffic}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return measured


def curves_of(traffic: str, prompts: list[Prompt], sizes: Sequence[int], all_running: Sequence[int]) -> list[Curves]:
    percent, replay = 100 / num_counted(prompts), Replay(prompts)
    infinite = percent * ideal_lru(prompts, sum(len(prompt.block_ids) for prompt in prompts))
    peers = {
        "infinite": [infinite for _ in sizes],
        "Belady": [percent * belady(prompts, size) for size in sizes],
        "ideal LRU": [percent * ideal_lru(prompts, size) for size in sizes],
    }
    curves = []
    for num_running in all_running:
        ours = {
            name: [percent * replay.run(size, policy, num_running=num_running) for size in sizes]
            for name, policy in OURS.items()
        }
        curves.append(Curves(traffic, num_running, sizes, {**peers, **ours}))
    return curves


def rows(measured: Sequence[Curves]) -> list[Row]:
    """Return each of ours beside each peer, and beside our LRU."""
    pairs = [(name, peer) for name in OURS for peer in (*PEERS, "LRU") if name != peer]
    return [
        Row(
            name=f"hit rate, {name}",
            params=f"{curves.title}, {size:,} blocks",
            ours=(ours := curves.rates[name][index]),
            unit="%",
            peer=peer,
            peer_value=(theirs := curves.rates[peer][index]),
            ratio=ours / theirs if theirs else 1.0,
        )
        for curves in measured
        for index, size in enumerate(curves.sizes)
        for name, peer in pairs
    ]


def print_tables(measured: Sequence[Curves]) -> None:
    for curves in measured:
        columns = ("blocks", "tokens", *curves.rates, "gain over LRU", "of what Belady gains")
        lines = []
        for index, size in enumerate(curves.sizes):
            rates = {name: each[index] for name, each in curves.rates.items()}
            gain, room = rates["segmented LRU"] - rates["LRU"], rates["Belady"] - rates["LRU"]
            share = f"{gain / room:.0%}" if room > 1 else ""  # of nothing, any share is noise
            figures = (f"{rate:.2f}" for rate in rates.values())
            lines.append((f"{size:,}", f"{size * BLOCK_TOKENS / 1e6:,.1f}M", *figures, f"{gain:+.2f}", share))
        print_table(f"hit rate in %: {curves.title}", [f"{column}>" for column in columns], lines)


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


class Replay:
    """Prompts as requests, which keep their digests from one run to the next."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self.prompts = prompts
        self._requests = [
            Request(number, "generate", prompt.block_ids, (), max_tokens=1) for number, prompt in enumerate(prompts)
        ]

    def run(self, num_blocks: int, eviction_policy: str, *, num_running: int) -> int:
        """Return how many blocks of the counted prompts a new manager finds.

        Args:
            num_blocks: of the pool, the null block not included.
        """
        config = KVCacheConfig.of_one_group(num_blocks + 1, block_size=1)
        manager = KVCacheManager(config, max_model_len=num_blocks, eviction_policy=eviction_policy)
        running: deque[Request] = deque()
        found = 0
        for prompt, request in zip(self.prompts, self._requests, strict=True):
            if request.num_tokens > num_blocks:
                continue
            while len(running) >= num_running:
                manager.free(running.popleft())
            hit, num_hit = manager.get_computed_blocks(request)
            num_new = request.num_tokens - num_hit
            # Published at once, but only as far as blocks are full.
            while manager.allocate_slots(request, num_new, num_hit, hit, delay_cache_blocks=True) is None:
                manager.free(running.popleft())
            manager.cache_blocks(request, prompt.num_full)
            running.append(request)
            if prompt.is_counted:
                found += num_hit
        for request in running:
            manager.free(request)
        manager.check_integrity()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description="hit rate of a recorded service by pool size and eviction policy")
    parser.add_argument("trace", type=Path, help="a file in the Mooncake format")
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of tables")
    parser.add_argument("--quick", action="store_true", help="two sizes, 32 requests at a time")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BLOCKS", help="other pool sizes, at least 1 block")
    arguments = parser.parse_args()
    sizes = arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)
    if min(sizes) < 1:
        parser.error(f"--sizes {min(sizes)}: at least 1 block")
    try:
        prompts = read_trace(arguments.trace)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    measured = measure(prompts, sizes, is_quick=arguments.quick)
    if arguments.json:
        print_rows(parser.description or "", rows(measured), as_json=True)
    else:
        print_tables(measured)


if __name__ == "__main__":
    main()
