"""Measures which share of prompt tokens small pools find: the section `hits` of `scripts.bench.kv`.

The traffic is `texts`'s, one request at a time: its prompt in chunks, then its answer token by token, which is part of
the next turn. Mixes of layers have windows, chunks and states beside full attention. Chunks of a prompt end where the
layers with states can share them, as both sides' schedulers have it. The peers are vLLM's manager and, for mixes with
windows, ours with every full block published, whether a hit can use it or not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmcached.compat.kv_cache_manager import KVCacheManager
from mmcached.engine.kv.config import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from scripts.bench.harness import Bound, Row, row
from scripts.bench.sides import Kind, Ours, Side
from scripts.bench.texts import TRAFFIC, WORKING_SET_TOKENS

HIT_CHUNK_TOKENS = 256
ANSWER_TOKENS = 40
POOL_SHARES = (0.15, 0.4, 1.0)
"""Pools by what the working set takes up if every block of it stays."""
NUM_REQUESTS = 1_200
QUICK_REQUESTS = 300

WINDOWS = {
    "full 16, window 128 over 16": Kind((FullAttentionSpec(16), SlidingWindowSpec(16, 128))),
    "full 64, window 128 over 16": Kind((FullAttentionSpec(64), SlidingWindowSpec(16, 128))),
    "full 128, window 64 over 16": Kind((FullAttentionSpec(128), SlidingWindowSpec(16, 64))),
    "full 256, window 128 over 64": Kind((FullAttentionSpec(256), SlidingWindowSpec(64, 128))),
}
MIXES = WINDOWS | {
    "full 16, chunks of 512 over 16": Kind((FullAttentionSpec(16), ChunkedLocalAttentionSpec(16, 512))),
    "full 64, states every 64": Kind((FullAttentionSpec(64), MambaSpec(64))),
    "full, window 128, chunks of 512, states, all 64": Kind(
        (FullAttentionSpec(64), SlidingWindowSpec(64, 128), ChunkedLocalAttentionSpec(64, 512), MambaSpec(64))
    ),
}
HIT_RATE = "prompt tokens found"
ALL_PUBLISHED = "all published"


class EverythingPublished(Ours):
    """Ours without the rule that a block is published only if a hit can use it."""

    name = ALL_PUBLISHED

    def kv_manager(self, num_blocks: int, kind: Kind) -> KVCacheManager:
        manager = super().kv_manager(num_blocks, kind)
        publisher: Any = manager._publisher
        publisher._groups = tuple(replace(group, stride=1) for group in publisher._groups)
        for group in publisher._groups:
            group.kind.runs_for_hits = lambda start, stop: ((start, stop),)
        return manager


@dataclass(frozen=True, slots=True)
class Play:
    """One traffic on one manager."""

    traffic: str
    mix: str
    share: float

    @property
    def num_blocks(self) -> int:
        """Of the pool, the null block not included."""
        return int(self.share * sum(WORKING_SET_TOKENS / size for size in MIXES[self.mix].block_sizes))

    @property
    def params(self) -> str:
        return f"{self.traffic}; {self.mix}; {self.num_blocks:,} blocks"

    def percent_found(self, side: Side, num_requests: int) -> float:
        """Return how much of all prompt tokens was found, after as many requests that do not count."""
        kind = MIXES[self.mix]
        manager = side.kv_manager(self.num_blocks + 1, kind)
        texts = TRAFFIC[self.traffic](random.Random(self.traffic), math.gcd(*kind.block_sizes))
        num_found = num_asked = 0
        for number, text in zip(range(2 * num_requests), texts, strict=False):
            num_prompt = text.num_tokens
            text.grow(ANSWER_TOKENS)
            side.start_step(manager)
            found = _run(manager, side.request([0] * text.num_tokens, text.digests), num_prompt, kind.chunk_grain)
            if number >= num_requests:
                num_found, num_asked = num_found + found, num_asked + num_prompt
        return 100 * num_found / num_asked


PLAYS = [Play(traffic, mix, share) for traffic in TRAFFIC for mix in MIXES for share in POOL_SHARES]


def _run(manager: Any, request: Any, num_prompt: int, grain: int) -> int:
    """Compute a request alone, and free it; return how many tokens of its prompt were found.

    Chunks end at multiples of `grain` tokens, but for the last.

    Raises:
        RuntimeError: the pool is too small even for one.
    """
    hit = manager.get_computed_blocks(request)
    blocks, num_found = hit[0], min(int(hit[1]), num_prompt - 1)
    while request.num_computed_tokens < request.num_tokens:
        num_done = request.num_computed_tokens + (hit[1] if blocks is not None else 0)
        end = min(num_done + HIT_CHUNK_TOKENS, num_prompt) if num_done < num_prompt else num_done + 1
        num_new = (end // grain * grain if end // grain * grain > num_done else end) - num_done
        if blocks is None:
            given = manager.allocate_slots(request, num_new)
        else:
            given, blocks = manager.allocate_slots(request, num_new, hit[1], blocks), None
        if given is None:
            raise RuntimeError(f"{num_done + num_new} tokens do not fit")
        request.num_computed_tokens = num_done + num_new
    manager.free(request)
    return num_found


def hit_rows(vllm: Side | None, *, is_quick: bool) -> list[Row]:
    """Return a row for each traffic, mix and pool against each peer; a quick run asks less often."""
    num_requests = QUICK_REQUESTS if is_quick else NUM_REQUESTS
    rows = []
    for play in PLAYS:
        ours = play.percent_found(Ours(), num_requests)
        peers: Sequence[Side] = [EverythingPublished()] if play.mix in WINDOWS else []
        for peer in [*peers, *([vllm] if vllm is not None else [])]:
            theirs = play.percent_found(peer, num_requests)
            rows.append(row(HIT_RATE, play.params, ours, "%", peer=peer.name, peer_value=theirs))
    return rows


BOUNDS = tuple(
    Bound("reach", HIT_RATE, play.params, peer, 1.0, is_floor=True)
    for play in PLAYS
    for peer in ((ALL_PUBLISHED, "vLLM") if play.mix in WINDOWS else ("vLLM",))
)
