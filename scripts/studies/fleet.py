"""Replays a recorded service over several engines: what each routing policy finds in their KV caches, and at what load.

hit rate        share of all prompt blocks that a lookup finds, in percent; see `replay`
largest load    prompt tokens that the engine with the most of them has computed ÷ the mean, in percent
time to finish  from a prompt's arrival until it is computed, mean, in seconds

The engines have the real KV manager, the choice is the frontend's own code. Prompts arrive when they did; an engine
computes them one after the other at a rate at which all engines would be busy seven tenths of the time if nothing was
found. So times are in proportion to each other, and mean nothing on a machine. What a prompt brings can be found by the
next one of its engine at once, since that is computed after it; the router hears of it when it has been computed.
Generated tokens are left out: no trace says what they were.
"""

from __future__ import annotations

import argparse
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from mmcached.cache.hashing.block_hash import extend_block_hashes
from mmcached.compat.kv_cache_manager import KVCacheManager
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.server.held_content import ContentReporter as Told
from mmcached.engine.steps.request import Request
from mmcached.gateway.engines.engine_content import EngineContent as Known
from mmcached.gateway.engines.routing import Candidate, Router, RoutingPolicy
from mmcached.wire.messages.frontend_from_engines import CacheChanged
from scripts.bench.harness import Row, print_rows
from scripts.studies.traces import BLOCK_TOKENS, Prompt, read_trace

NUM_ENGINES = 4
SIZES = (1_000, 2_000, 5_000, 10_000)
UTILISATION = 0.7
POLICIES: tuple[RoutingPolicy, ...] = get_args(RoutingPolicy)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy has made of the trace: see the head of this module."""

    hit_rate: float
    largest_load: float
    finish_s: float


@dataclass(frozen=True, slots=True)
class _Running:
    request: Request
    finish_s: float
    news: list[CacheChanged]


class Engine:
    """One engine: its cache, what runs, and what the router knows of it."""

    def __init__(self, num_blocks: int, rate: float) -> None:
        config = KVCacheConfig.of_one_group(num_blocks + 1, block_size=1)
        self._manager = KVCacheManager(config, max_model_len=num_blocks, enable_kv_cache_events=True)
        self._told = Told()
        self._rate = rate
        self._free_at_s = 0.0
        self._running: deque[_Running] = deque()
        self.known = Known(num_blocks + 1, 1)
        self.num_computed = 0

    def go_on(self, now_s: float) -> None:
        """End what has been computed by now, and tell the router of it."""
        while self._running and self._running[0].finish_s <= now_s:
            self._end_oldest()

    def candidate(self, index: int, request: Request, now_s: float) -> Candidate:
        num_found = self.known.num_blocks_of(request.block_hashes[: request.num_tokens - 1])
        waiting = max(0.0, self._free_at_s - now_s) * self._rate
        return Candidate(index, round(waiting), len(self._running), (request.num_tokens - num_found) * BLOCK_TOKENS)

    def add(self, request: Request, num_full: int, now_s: float) -> tuple[int, float]:
        """Queue a request; return how many of its blocks are found, and when it is computed."""
        manager = self._manager
        hit, num_hit = manager.get_computed_blocks(request)
        num_new = request.num_tokens - num_hit
        while manager.allocate_slots(request, num_new, num_hit, hit, delay_cache_blocks=True) is None:
            self._end_oldest()  # it is computed before this one begins
            hit, num_hit = manager.get_computed_blocks(request)
            num_new = request.num_tokens - num_hit
        manager.cache_blocks(request, num_full)
        self.num_computed += num_new * BLOCK_TOKENS
        self._free_at_s = max(now_s, self._free_at_s) + num_new * BLOCK_TOKENS / self._rate
        news: list[CacheChanged] = []
        self._told.note(manager.take_events(), set())
        self._told.tell(news.append)
        self._running.append(_Running(request, self._free_at_s, news))
        return num_hit, self._free_at_s

    def _end_oldest(self) -> None:
        oldest = self._running.popleft()
        self._manager.free(oldest.request)
        for change in oldest.news:
            self.known.take(change)


def rate_of(prompts: Sequence[Prompt], num_engines: int) -> float:
    """Return tokens a second of one engine."""
    num_tokens = BLOCK_TOKENS * sum(len(prompt.block_ids) for prompt in prompts)
    return num_tokens / ((prompts[-1].arrival_s or 1.0) * num_engines * UTILISATION)


def play(prompts: Sequence[Prompt], policy: RoutingPolicy, num_blocks: int, num_engines: int = NUM_ENGINES) -> Outcome:
    """Play a trace against engines whose pools have so many blocks, the null block not included."""
    router, rate = Router(policy), rate_of(prompts, num_engines)
    engines = [Engine(num_blocks, rate) for _ in range(num_engines)]
    num_found = num_asked = 0
    times_s = []
    for number, prompt in enumerate(prompts):
        request = Request(number, "generate", prompt.block_ids, (), max_tokens=1)
        if request.num_tokens > num_blocks:
            continue
        extend_block_hashes(request, 1)
        now_s = prompt.arrival_s
        for engine in engines:
            engine.go_on(now_s)
        chosen = router.choose([engine.candidate(index, request, now_s) for index, engine in enumerate(engines)])
        router.pass_turn(chosen.index)
        num_hit, finish_s = engines[chosen.index].add(request, prompt.num_full, now_s)
        num_found += num_hit
        num_asked += request.num_tokens
        times_s.append(finish_s - now_s)
    loads = [engine.num_computed for engine in engines]
    return Outcome(100 * num_found / num_asked, 100 * max(loads) / statistics.mean(loads), statistics.mean(times_s))


def rows(prompts: Sequence[Prompt], sizes: Sequence[int]) -> list[Row]:
    """Return `cache_aware` beside the other policies."""
    found = []
    for size in sizes:
        outcomes = {policy: play(prompts, policy, size) for policy in POLICIES}
        ours = outcomes["cache_aware"]
        for peer in POLICIES[1:]:
            theirs = outcomes[peer]
            for name, unit, value, other in (
                ("KV hit rate, cache_aware", "%", ours.hit_rate, theirs.hit_rate),
                ("largest load, cache_aware", "% of mean", ours.largest_load, theirs.largest_load),
                ("time to finish, cache_aware", "s", ours.finish_s, theirs.finish_s),
            ):
                params = f"{NUM_ENGINES} engines, {size:,} blocks each"
                found.append(Row(name, params, value, unit, peer, other, value / other))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="KV hit rate and load of several engines by routing policy")
    parser.add_argument("trace", type=Path, help="a file in the Mooncake format")
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of a table")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BLOCKS", help="pool sizes of an engine")
    arguments = parser.parse_args()
    try:
        prompts = read_trace(arguments.trace)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print_rows(parser.description or "", rows(prompts, arguments.sizes), as_json=arguments.json)


if __name__ == "__main__":
    main()
