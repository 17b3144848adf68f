"""Leads our KV cache manager and vLLM's through the same random histories: `make verify-kv`.

Each operation is done with both, and both must answer alike: block ids that are found and handed out, refusals, tables,
the free order, what is published. Steps are not used, because vLLM has none: both publish at once.

    add, admit, run     a request of one of three families, so that prefixes are shared; its hit, a chunk of its prompt
    decode              one token more, sometimes with slots for a drafter
    preempt, finish     `free`, or `pop_blocks_for_free` and the pool's `free_blocks`
    reset               `reset_prefix_cache`

What vLLM offers and this repository does not, and the reverse, is in the table of `docs/kv-cache.md`; it is not asked
for here. Digests are drawn once for each prefix, because a manager sees only their values.

Needs vLLM: the environment of `make bench-peers`.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import math
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import Any

from mmcached.compat.kv_cache_manager import KVCacheManager
from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.config import CrossAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
from mmcached.engine.steps.request import Request
from scripts.verification.kv_kinds import KINDS, Peer, Setting, setting_of

NUM_ALIVE = 6
NUM_OPERATIONS = 1_000_000
HISTORY = 400
"""Attempts with one pair of managers."""
ACTIONS = (
    *("admit", "run", "decode") * 6,
    *("add", "add", "add", "preempt", "preempt", "finish", "finish"),
    "reset",
)
COMPARED_IN_FULL_EVERY = 16


@dataclass(eq=False)
class Both:
    """A request, as each side sees it."""

    ours: Request
    theirs: Any
    family: int
    num_encoder: int
    is_held: bool = False


class Mismatch(AssertionError):
    """The two answered differently."""


class Pair:
    """Both managers and their requests.

    Attributes:
        seen: how often what happened.
    """

    def __init__(self, peer: Peer, setting: Setting, rng: random.Random) -> None:
        self._peer, self._setting, self._rng = peer, setting, rng
        groups = [
            KVCacheGroupSpec([f"layer {number}"], group.spec, group.is_replicated)
            for number, group in enumerate(setting.groups)
        ]
        config = KVCacheConfig(setting.num_blocks, groups, setting.num_ranks)
        self.ours = KVCacheManager(config, setting.max_model_len, setting.enable_caching)
        self._hash_size = config.hash_block_size
        self.theirs = peer.manager(
            peer.config(setting),
            setting.max_model_len,
            scheduler_block_size=math.lcm(*config.block_sizes),
            hash_block_size=self._hash_size,
            enable_caching=setting.enable_caching,
            dcp_world_size=setting.num_ranks,
        )
        self._split = SimpleNamespace(
            cache_config=SimpleNamespace(block_size=config.scheduler_block_size),
            block_size=config.scheduler_block_size,
            mamba_partial_cache_hit=False,
            mamba_shared_prefix_checkpoint=False,
            mamba_has_prefill_checkpoint_blocks=False,
            use_eagle_block_drop=False,
            num_hash_lookahead_tokens=0,
            hash_block_size=self._hash_size,
            max_num_scheduled_tokens=0,
            scheduler_config=SimpleNamespace(long_prefill_token_threshold=0),
        )
        states = [group.spec for group in setting.groups if isinstance(group.spec, MambaSpec)]
        self._has_mamba = any(spec.mamba_cache_mode == "align" for spec in states)
        # Beside larger blocks, a window's are published earlier here than in vLLM if there are draft tokens.
        self._takes_drafts = len(set(config.block_sizes)) == 1
        self._has_cross = any(isinstance(group.spec, CrossAttentionSpec) for group in setting.groups)
        self._digests: dict[tuple[int, ...], bytes] = {}
        self._requests: list[Both] = []
        self._ids = count()
        self.seen: Counter[str] = Counter()

    def do(self, number: int) -> bool:
        """Do something with both, if it can be done now; return whether it could. Raises `Mismatch`."""
        action = self._rng.choice(ACTIONS)
        if action == "add":
            if len(self._requests) == NUM_ALIVE:
                return False
            self._add()
        elif action == "reset":
            self._check("reset", self.ours.reset_prefix_cache(), self.theirs.reset_prefix_cache())
        else:
            candidates = [each for each in self._requests if self._can(action, each)]
            if not candidates:
                return False
            getattr(self, f"_{action}")(self._rng.choice(candidates))
        self.seen[action] += 1
        self._compare(in_full=number % COMPARED_IN_FULL_EVERY == 0)
        return True

    def _can(self, action: str, both: Both) -> bool:
        if both.is_held == (action == "admit"):
            return False
        num_left = both.ours.num_tokens - both.ours.num_computed_tokens
        if action == "decode":
            return not num_left and both.ours.num_tokens + 4 <= self._setting.max_model_len
        return num_left > 0 or action != "run"

    def _add(self) -> None:
        family, most = self._rng.randrange(3), min(60, self._setting.max_model_len)
        token_ids = [self._token(position, family) for position in range(self._rng.randint(1, most))]
        number = next(self._ids)
        ours = Request(number, "generate", token_ids, [], max_tokens=1)
        theirs = self._peer.request(str(number), list(token_ids), self._peer.sampling, None)
        both = Both(ours, theirs, family, self._rng.randrange(1, 20) if self._has_cross else 0)
        self._hash(both)
        self._requests.append(both)

    def _token(self, position: int, family: int) -> int:
        return position if position < 13 else 100 * family + position

    def _hash(self, both: Both) -> None:
        """Give both sides the digests of the blocks that are full now."""
        token_ids = tuple(both.ours.token_ids)
        for end in range(len(both.ours.block_hashes) + 1, len(token_ids) // self._hash_size + 1):
            prefix = token_ids[: end * self._hash_size]
            if prefix not in self._digests:
                self._digests[prefix] = hashlib.sha256(repr(prefix).encode()).digest()
            both.ours.block_hashes.append(self._digests[prefix])
            both.theirs.block_hashes.append(self._digests[prefix])

    def _admit(self, both: Both) -> None:
        ours, theirs = both.ours, both.theirs
        self.theirs.new_step_starts()
        found, num_found = self.ours.get_computed_blocks(ours)
        their_found, their_num_found, _ = self.theirs.get_computed_blocks(theirs)
        self._check("hit", (_ids(found), num_found), (_ids(their_found), their_num_found))
        self.seen["hit"] += num_found > 0
        num_left = ours.num_tokens - num_found
        num_external = 0
        if self._setting.has_external and num_left > 1 and self._rng.random() < 0.3:
            num_external = self._rng.randrange(1, num_left)
        num_new = self._chunk(both, num_found + num_external, self._rng.randint(1, num_left - num_external))
        options: dict[str, Any] = {"num_encoder_tokens": both.num_encoder}
        if num_external:
            options["num_external_computed_tokens"] = num_external
        given = self.ours.allocate_slots(ours, num_new, num_found, found if num_found else None, **options)
        self._allocated(
            both,
            given,
            self.theirs.allocate_slots(theirs, num_new, num_found, their_found, **options),
            num_found + num_external + num_new,
            num_external,
        )

    def _run(self, both: Both) -> None:
        num_left = both.ours.num_tokens - both.ours.num_computed_tokens
        num_new = self._chunk(both, both.ours.num_computed_tokens, self._rng.randint(1, num_left))
        self._extend(both, num_new, 0)

    def _decode(self, both: Both) -> None:
        """Let the next token be known, and compute it; sometimes with draft tokens or slots for a drafter."""
        ours, theirs = both.ours, both.theirs
        for _ in range(1 if self._has_mamba else self._rng.randint(1, 2)):
            self._append(both)
        self._hash(both)
        num_drafts = self._rng.choice((0, 0, 0, 2)) if self._takes_drafts else 0
        num_new = ours.num_tokens - ours.num_computed_tokens
        if self._extend(both, num_new, self._rng.choice((0, 0, 3)), num_drafts):
            for _ in range(self._rng.randint(0, num_drafts)):  # accepted: known and computed
                self._append(both)
                ours.num_computed_tokens += 1
                theirs.num_computed_tokens += 1
            self._hash(both)

    def _append(self, both: Both) -> None:
        token_id = self._token(both.ours.num_tokens, self._rng.choice((both.family, both.family, 5)))
        both.ours.append_output_token(token_id)
        both.theirs.append_output_token_ids(token_id)

    def _chunk(self, both: Both, start: int, num_new: int) -> int:
        """Return where the chunk ends for which states can be shared; both sides must know the same place."""
        if not self._has_mamba:
            return num_new
        given = self.ours.chunk_end(both.ours, start, start + num_new) - start
        num_skipped = start - both.theirs.num_computed_tokens
        self._check("chunk", given, self._peer.split(self._split, both.theirs, num_new, num_skipped))
        return given

    def _extend(self, both: Both, num_new: int, num_lookahead: int, num_drafts: int = 0) -> bool:
        num_in_flight = self._rng.choice((0, 0, min(3, both.ours.num_computed_tokens)))
        both.theirs.num_in_flight_tokens = num_in_flight
        given = self.ours.allocate_slots(
            both.ours,
            num_new + num_drafts,
            num_draft_tokens=num_drafts,
            num_lookahead_tokens=num_lookahead,
            num_in_flight_tokens=num_in_flight,
        )
        theirs = self.theirs.allocate_slots(both.theirs, num_new + num_drafts, num_lookahead_tokens=num_lookahead)
        both.theirs.num_in_flight_tokens = 0
        self._allocated(both, given, theirs, both.ours.num_computed_tokens + num_new)
        return given is not None

    def _allocated(
        self, both: Both, given: KVCacheBlocks | None, theirs: Any, num_computed: int, num_external: int = 0
    ) -> None:
        self._check("is refused", given is None, theirs is None)
        if given is not None and not num_external:  # vLLM does not return the blocks of what is delivered
            self._check("new", _ids(given), _ids(theirs))
        if given is None:
            self.seen["refused"] += 1
            return
        both.is_held = True
        both.ours.num_computed_tokens = both.theirs.num_computed_tokens = num_computed
        tables = self.ours.get_block_ids(both.ours.request_id), self.theirs.get_block_ids(both.theirs.request_id)
        self._check("tables", *tables)

    def _preempt(self, both: Both) -> None:
        if self._rng.random() < 0.5:
            self.ours.free(both.ours)
            self.theirs.free(both.theirs)
        else:
            popped, their_popped = (
                self.ours.pop_blocks_for_free(both.ours),
                self.theirs.pop_blocks_for_free(both.theirs),
            )
            self._check("popped", popped, [block.block_id for block in their_popped if not block.is_null])
            self.ours.block_pool.free_blocks(popped[::-1])
            self.theirs.block_pool.free_blocks(list(reversed(their_popped)))
        both.is_held = False
        both.ours.num_computed_tokens = both.theirs.num_computed_tokens = 0

    def _finish(self, both: Both) -> None:
        self._preempt(both)
        self._requests.remove(both)
        self.ours.free_block_hashes(both.ours)

    def _compare(self, *, in_full: bool) -> None:
        pool, their_pool = self.ours.block_pool, self.theirs.block_pool
        self._check("number of free blocks", pool.num_free, their_pool.get_num_free_blocks())
        if in_full:
            their_order = [block.block_id for block in their_pool.free_block_queue.get_all_free_blocks()]
            self._check("free order", pool.free_order(), their_order)
            published = [block_id for block_id in range(pool.num_blocks) if pool.block_key(block_id) is not None]
            self._check("published", published, [each.block_id for each in their_pool.blocks if each.block_hash])

    def _check(self, what: str, ours: object, theirs: object) -> None:
        if ours != theirs:
            raise Mismatch(f"{what}: ours {ours}, vLLM's {theirs}; {self._setting}")


def _ids(blocks: Any) -> tuple[list[int], ...]:
    """Return block ids by group, of either side."""
    return tuple([block.block_id for block in group] for group in blocks.blocks)


def lead(peer: Peer, kind: str, num_operations: int, seed: int) -> Counter[str]:
    """Lead pairs of one kind through so many operations; return how often what happened. Raises `Mismatch`."""
    seen: Counter[str] = Counter()
    done = 0
    for history in count():
        if done >= num_operations:
            return seen
        rng = random.Random(f"{kind} {seed} {history}")
        pair = Pair(peer, setting_of(kind, rng), rng)
        for number in range(HISTORY):
            try:
                done += pair.do(number)
            except Exception as error:
                raise Mismatch(f"{kind}, seed {seed}, history {history}, operation {number}") from error
        seen += pair.seen
    raise AssertionError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--operations", type=int, default=NUM_OPERATIONS, help="of each kind")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # vLLM reports every refused reset
    peer = Peer()
    for kind in options.kinds:
        start = time.monotonic()
        seen = lead(peer, kind, options.operations, options.seed)
        counts = ", ".join(f"{what} {number:,}" for what, number in sorted(seen.items()))
        print(f"{kind}: {options.operations:,} operations, no difference, {time.monotonic() - start:.0f} s; {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
