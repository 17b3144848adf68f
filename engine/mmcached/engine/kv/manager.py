"""Which KV blocks each request holds, and which prefixes need not be computed again.

A request's block tables, one for each group of layers, only ever grow, and go back whole:

     | computed | prefix hit | external |    new     | lookahead |
     0          ^            ^          ^            ^           ^
     held       shared now   delivered  computed in  slots for a drafter,
     already                 by others  this step    never published
     what is handed out now: all that lies behind the hit and has no block yet

`reserve -> commit -> publish`: inside a step, a block that becomes full is reserved (`steps`). Requests that are
scheduled after its writer may share it, the rest find it after `commit`, since until then nobody has written it;
`withdraw` takes all of it back. The seed's face, without a step, publishes at once: there the caller vouches that it
computes before anybody reads.

Most calls for a running request change nothing: they end at its horizon (`request_blocks`).

Knows nothing of scheduling order or of the tensors behind the blocks. Invariant: a published block holds exactly the
KV that its content key names.

Source: vLLM's KVCacheManager, whose method names, block layout, free order, null block and last-token rule these are.
Publication at commit, fences and epochs are differences.

A manager can be pickled, also within a step: all of it is lists, dictionaries and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy.typing as npt

from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.events import PublishedLog
from mmcached.engine.kv.hashing.block_hash import block_hasher
from mmcached.engine.kv.integrity import check_integrity
from mmcached.engine.kv.lookup.coordinator import make_coordinator
from mmcached.engine.kv.lookup.lookups import PrefixLookups
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.pool.eviction_policies import make_eviction_order
from mmcached.engine.kv.publisher import Publisher
from mmcached.engine.kv.request_blocks import UNLIMITED
from mmcached.engine.kv.slots import check_counts
from mmcached.engine.kv.stats import AdmissionCounts, PrefixCacheStats
from mmcached.engine.kv.steps import Steps
from mmcached.engine.kv.tables import BlockTables
from mmcached.engine.steps.request import Request, RequestStatus
from mmcached.wire.errors import ConfigError, LocalProtocolError
from mmcached.wire.messages.kv_events import KVEvent
from mmcached.wire.stats import KVCacheStats


class KVCacheManager:
    """The block tables of all running requests and the prefix cache.

    Args:
        max_model_len: tokens; no request gets slots beyond it.
        enable_caching: whether blocks are published and found at all.
        caching_hash_algo: what makes the digests (`block_hash.block_hasher`).
        use_eagle: the drafter needs the hidden state before the point where a request goes on, so the last block that
            is found is computed again. Not with hash lookahead, which makes that unnecessary.
        log_stats: whether `make_prefix_cache_stats` has anything to tell.
        enable_kv_cache_events: whether `take_events` has.
        num_hash_lookahead_tokens: tokens behind a block that its digest covers too.
        eviction_policy: "lru", or "segmented_lru", which spares what was asked for again (`eviction_policies`).
        hash_seed: managers with the same one make the same digests, whatever the algorithm.

    Attributes:
        req_to_block_hashes: digests by request id, from the first lookup or publication to `free_block_hashes`.
        caching_hash_fn: makes one digest: of a parent's digest, token ids and extra keys.
        epoch: how often `new_epoch` was called.

    Raises:
        ConfigError: a size, an algorithm or a policy that cannot be.
    """

    def __init__(  # noqa: PLR0917 (the seed's signature)
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        enable_caching: bool = True,
        caching_hash_algo: str = "sha256",
        use_eagle: bool = False,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        *,
        num_hash_lookahead_tokens: int = 0,
        eviction_policy: str = "lru",
        hash_seed: str = "",
    ) -> None:
        if max_model_len < 1:
            raise ConfigError("max_model_len", max_model_len, "at least 1 token")
        if num_hash_lookahead_tokens < 0:
            raise ConfigError("num_hash_lookahead_tokens", num_hash_lookahead_tokens, "at least 0 tokens")
        pool_size, hash_block_size = kv_cache_config.num_blocks, kv_cache_config.hash_block_size
        hasher = block_hasher(caching_hash_algo, hash_seed)
        self.config = kv_cache_config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.caching_hash_fn = hasher.hash_block
        self._counts = AdmissionCounts(log_stats=log_stats)
        self.epoch = 0

        num_lookahead = num_hash_lookahead_tokens
        self._log = PublishedLog(kv_cache_config, hasher, num_lookahead) if enable_kv_cache_events else None
        self.block_pool = BlockPool(pool_size, make_eviction_order(eviction_policy, pool_size), log=self._log)
        self._steps = Steps()
        num_recomputed = int(use_eagle and not num_lookahead)
        self.coordinator = make_coordinator(
            kv_cache_config, self.block_pool, self._steps, enable_caching=enable_caching, num_recomputed=num_recomputed
        )
        self._groups = self.coordinator.groups
        self._tables = BlockTables(kv_cache_config, self.block_pool, self._steps, self._groups, max_model_len)
        self._publisher = Publisher(
            self.block_pool,
            self._steps,
            self._groups,
            hasher,
            hash_block_size=hash_block_size,
            num_lookahead_tokens=num_lookahead,
            log=self._log,
        )
        self.req_to_block_hashes = self._publisher.req_to_block_hashes
        self._held = self._tables.held
        self._empty = self._tables.empty
        self._lookups = PrefixLookups(
            self.block_pool,
            self._steps,
            self._publisher,
            self.coordinator,
            nothing=self._empty,
            num_recomputed=num_recomputed,
        )
        self._takes_part = self._steps.takes_part
        self._hash_block_size = hash_block_size

    @property
    def prefix_cache_stats(self) -> PrefixCacheStats | None:
        """What `make_prefix_cache_stats` would return now."""
        return self._counts.interval

    @property
    def usage(self) -> float:
        """Share of the blocks that are not free, 0 to 1."""
        usable = self.block_pool.num_blocks - 1
        return self.block_pool.num_held / usable if usable else 0.0

    @property
    def num_fenced(self) -> int:
        """Blocks that were given back and become free when a step in flight has ended; references, if shared."""
        fenced = [block_ids for step in self._steps for _, block_ids in step.fenced]
        return sum(block_id != NULL_BLOCK_ID for block_ids in fenced for block_id in block_ids)

    # ---- the seed's face: lookups and slots

    def get_computed_blocks(self, request: Request, max_num_tokens: int | None = None) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of a request and its length in tokens. Changes nothing.

        The last token is never taken from the cache: computing it is what gives the next one. Hits are whole blocks, so
        a prompt that is cached to the end computes its last block again.

        Args:
            max_num_tokens: that the caller can use of a hit; None: all.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self._empty, 0
        if max_num_tokens is not None:
            return self._lookups.find_up_to(request, max_num_tokens)
        return self._lookups.find(request)

    def allocate_slots(  # noqa: PLR0917 (the seed's signature)
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_draft_tokens: int = 0,
        num_lookahead_tokens: int = 0,
        delay_cache_blocks: bool = False,
        *,
        num_external_computed_tokens: int = 0,
        num_in_flight_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        """Give a request the slots for its next tokens, after what it has computed and what was just found for it.

        Args:
            num_new_tokens: to be computed now, guesses of a drafter included.
            num_new_computed_tokens: length of the prefix hit; only for a request that holds nothing yet.
            new_computed_blocks: the blocks of that hit, as `get_computed_blocks` returned them.
            num_draft_tokens: how many of the new ones are guesses, at the end; they are not published.
            num_lookahead_tokens: slots behind all these, for a drafter.
            delay_cache_blocks: the content comes later; nothing is published until `cache_blocks`.
            num_external_computed_tokens: behind the hit, computed elsewhere and delivered into these slots. Null blocks
                stand for what windows have passed by then, in the hit too.
            num_in_flight_tokens: how many of the request's computed tokens workers may still be computing; windows
                leave behind only what the others do not need. For engines that name no steps: `begin_step` knows.

        Returns:
            The newly handed-out blocks, without the hit's, perhaps none; None if there are not enough free blocks, and
            then nothing has changed, except that windows have moved on to where the request is.

        Raises:
            ValueError: nothing is asked for, a number that cannot be, a prefix hit for a request that holds blocks, or
                one that was evicted since.
            LocalProtocolError: steps are in flight and none is being built, or the request can only be freed, because
                what it took over was withdrawn.
        """
        held = self._held.get(request.request_id)
        if (
            held is not None
            and 0
            <= num_draft_tokens
            <= num_new_tokens
            <= held.horizon - request.num_computed_tokens - num_lookahead_tokens
            and num_new_tokens
            and new_computed_blocks is None
            and not (num_new_computed_tokens or num_external_computed_tokens)
            and num_lookahead_tokens >= 0 <= num_in_flight_tokens
        ):
            if self._takes_part is not None:
                self._takes_part.add(held)
            return self._empty

        check_counts(
            num_new_tokens,
            num_new_computed_tokens,
            num_external_computed_tokens,
            num_draft=num_draft_tokens,
            num_lookahead=num_lookahead_tokens,
            num_in_flight=num_in_flight_tokens,
        )
        if self._takes_part is not None:
            self._steps.check_can_take_part(request.request_id)
        hit = self._empty if new_computed_blocks is None else new_computed_blocks
        if hit is not self._empty or num_new_computed_tokens:
            if held is not None and num_new_computed_tokens:
                raise ValueError(f"request {request.request_id} holds blocks: no prefix hit can be put before them")
            self._lookups.check(request, hit, num_new_computed_tokens)
        num_local = request.num_computed_tokens + num_new_computed_tokens
        num_tokens = num_local + num_external_computed_tokens + num_new_tokens
        num_slots = num_tokens + num_lookahead_tokens
        if num_slots > self.max_model_len:  # noqa: PLR1730 (a comparison takes a fifth of the time of `min`)
            num_slots = self.max_model_len
        next_full = held.next_full if held is not None else self._first_full(num_new_computed_tokens)
        num_final, digests = num_tokens - num_draft_tokens, None
        if num_tokens >= next_full and not delay_cache_blocks:
            # What is final is decided now: slots beyond the request's tokens are for guesses, and another token may
            # take a guess's place before the commit.
            num_final = min(num_final, request.num_tokens, self.max_model_len)
            digests = self._publisher.digests(request)  # a token may be refused, so before all changes
        if held is None:
            start = hit
            if num_external_computed_tokens:
                start = self._tables.behind_windows(hit, num_local + num_external_computed_tokens, num_slots)
            new = self._admit(
                request, hit, start, num_hit_tokens=num_new_computed_tokens, num_slots=num_slots, next_full=next_full
            )
        else:
            new = self._tables.go_on(held, num_local - num_in_flight_tokens, num_slots)
        if new is None:
            return None
        held = self._held[request.request_id]
        if self._takes_part is not None:
            self._takes_part.add(held)
        if digests is not None:
            self._publisher.publish(request, held, digests, num_final, most_tokens=num_tokens)
        held.set_horizon()
        return new

    def num_blocks_to_allocate(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        *,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
    ) -> int:
        """Return how many of the free blocks such a call of `allocate_slots` takes. Changes nothing.

        Free blocks of the hit count, because nobody else can take them then; what windows will give back does not.
        """
        num_computed = request.num_computed_tokens + num_new_computed_tokens + num_external_computed_tokens
        num_slots = min(num_computed + num_new_tokens + num_lookahead_tokens, self.max_model_len)
        hit = self._empty if new_computed_blocks is None else new_computed_blocks
        if num_external_computed_tokens:
            hit = self._tables.behind_windows(hit, num_computed, num_slots)
        return self._tables.num_to_take(request.request_id, hit, num_slots)

    def num_lacking_blocks(self, request: Request, num_tokens: int, most_new_tokens: int) -> int:
        """Return how many more blocks a request needs until it has computed so many tokens. Changes nothing.

        Args:
            most_new_tokens: that are computed at once; with windows, what lies behind goes back in between.
        """
        return self._tables.num_lacking(request.request_id, num_tokens, most_new_tokens)

    def can_admit(self, request: Request, hit: KVCacheBlocks, *, most_new_tokens: int, num_spare_blocks: int) -> bool:
        """Whether all of a request that holds nothing fits behind its hit now, with some blocks to spare.

        A request that is refused is remembered like one that `allocate_slots` refuses, so asking again is cheap.
        """
        # Null blocks stand at the beginning; where there is none, none is looked for.
        num_null = sum(ids.count(NULL_BLOCK_ID) for ids in hit.ids if ids and ids[0] == NULL_BLOCK_ID)
        num_hit_blocks = sum(map(len, hit.ids)) - num_null
        num_lacking = self.num_lacking_blocks(request, request.num_tokens, most_new_tokens) - num_hit_blocks
        if self._lookups.fits(request, hit, max(0, num_lacking) + num_spare_blocks):
            return True
        if num_hit_blocks:
            self._lookups.was_refused(request, hit, len(hit.ids[0]) * self.config.block_sizes[0])
        return False

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish a request's full blocks up to this many tokens, which have been computed or have arrived.

        Those published or reserved before stay as they are. With caching off, nothing happens.

        Raises:
            LocalProtocolError: the request holds nothing, or too few slots, or blocks before these wait for a step.
        """
        held = self._held.get(request.request_id)
        num_final = min(num_computed_tokens, request.num_tokens)
        num_final -= num_final % self._hash_block_size
        if not self.enable_caching or (held is None and not num_final):
            return
        num_slots = 0 if held is None else min(held.num_slots(self.config.block_sizes), default=num_final)
        if held is None or num_final > num_slots:
            what = f"{num_final} tokens cannot be published"
            raise LocalProtocolError(f"request {request.request_id}: {what}, it has slots for {num_slots}")
        if num_final >= held.next_full:
            if self._steps.reserves_for(held):
                raise LocalProtocolError(f"request {request.request_id}: blocks before these wait for a step to end")
            digests = self._publisher.digests(request)
            self._publisher.publish(request, held, digests, num_final, most_tokens=num_final, at_once=True)
        held.set_horizon()

    def free(self, request: Request) -> None:
        """Take back all blocks of a request; what it published stays findable. Holding nothing changes nothing.

        The tail of a sequence is given up before its head, because a prefix without its head is useless. In the step
        that is being built nothing of it is published; blocks that a step in flight may use become free when that ends.

        Raises:
            LocalProtocolError: others count on what it would write in the step being built: `withdraw_request`.
        """
        self._lookups.forget(request.request_id)
        held = self._held.get(request.request_id)
        if held is None:
            return
        if self._takes_part is not None and (borrowers := self._steps.borrowers(held)):
            ids = sorted(borrower.request_id for borrower in borrowers)
            raise LocalProtocolError(f"requests {ids} share what request {request.request_id} would write in this step")
        self._tables.free(held)

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Give back what windows have left behind at this many computed tokens, before the next allocation would."""
        held = self._held.get(request.request_id)
        if held is not None and not held.is_lost:
            self._tables.move_windows(held, num_computed_tokens)

    def evict_blocks(self, block_ids: Iterable[int]) -> list[int]:
        """Let nobody find these blocks any more, as after a load that failed; they stay with their holders.

        What holders have behind them was computed from them, and goes with them. Whoever holds any of that computes it
        again: set `num_computed_tokens` back and go on; what is final then is published anew. Blocks that were computed
        from these by requests that have been freed since are not known here: name them too, or begin a `new_epoch`.

        Returns:
            The ids of those holders.

        Raises:
            LocalProtocolError: steps are in flight, which may publish what was computed from these: end them first.
            ValueError: there is no such block.
        """
        if self._steps.newest is not None:
            raise LocalProtocolError("blocks cannot be evicted while steps are in flight: commit or withdraw them")
        gone = self._checked_ids(block_ids)
        concerned: dict[int, None] = {}
        num_known = -1
        while num_known < len(gone):  # what one request has behind a block may be shared by another
            num_known = len(gone)
            for held in self._held.values():
                behind = held.cut_published(self.config.block_sizes, gone)
                if behind:
                    concerned[held.request_id] = None
                    gone.update(behind)
                    gone.discard(NULL_BLOCK_ID)
        self.block_pool.unpublish(sorted(gone))
        return list(concerned)

    def free_block_hashes(self, request: Request) -> None:
        """Forget the digests of a request that has ended; one that was preempted keeps them."""
        self._publisher.forget_digests(request)

    # ---- the seed's face: looking in, resetting

    def get_block_ids(self, request_id: int) -> tuple[list[int], ...]:
        """Return a copy of a request's block tables, null blocks included; empty if it holds nothing."""
        held = self._held.get(request_id)
        return tuple([] for _ in self._groups) if held is None else tuple(list(table) for table in held.tables)

    def get_blocks(self, request_id: int) -> KVCacheBlocks:
        """Return a request's blocks as they are now; empty if it holds nothing."""
        return KVCacheBlocks(self.block_pool, self.get_block_ids(request_id))

    def blocks_of(self, block_ids: Sequence[Sequence[int]]) -> KVCacheBlocks:
        """Return blocks by their ids, by group and position, such as a connector keeps.

        Raises:
            ValueError: not as many groups as there are, or no such block.
        """
        if len(block_ids) != len(self._groups):
            raise ValueError(f"block_ids are of {len(block_ids)} group(s), there are {len(self._groups)}")
        for ids in block_ids:
            self._checked_ids(ids)
        return KVCacheBlocks(self.block_pool, tuple(list(ids) for ids in block_ids))

    def write_block_table(self, request_id: int, out: npt.NDArray[Any], group_index: int = 0) -> int:
        """Write one block table into a row of the caller's, the null block behind it, and return its length.

        Args:
            out: of integers, one per block; of a tensor, `tensor.numpy()`.

        Raises:
            ValueError: the row is too short; nothing was written.
        """
        table = self.block_table(request_id, group_index)
        if len(table) > len(out):
            raise ValueError(f"out has room for {len(out)} blocks, request {request_id} has {len(table)}")
        out[: len(table)] = table
        out[len(table) :] = NULL_BLOCK_ID
        return len(table)

    def block_table(self, request_id: int, group_index: int = 0) -> Sequence[int]:
        """Return one block table as it stands, not to be changed; it grows at its end as the request goes on."""
        held = self._held.get(request_id)
        return held.tables[group_index] if held is not None else ()

    def get_num_common_prefix_blocks(self, request: Request, num_running_requests: int) -> list[int]:
        """Return, by group, how many leading blocks of a running request all running requests share.

        Raises:
            LocalProtocolError: the request does not run.
        """
        if request.status is not RequestStatus.RUNNING:
            raise LocalProtocolError(f"{request} does not run; only those that do have a prefix in common")
        tables = self.get_block_ids(request.request_id)
        return [
            group.kind.num_common_prefix_blocks(
                table, lambda block_id: self.block_pool.ref_cnt(block_id) == num_running_requests
            )
            for group, table in zip(self._groups, tables, strict=True)
        ]

    def create_empty_block_list(self) -> KVCacheBlocks:
        """Return no blocks, of as many groups as there are."""
        return self._empty.new_empty()

    def reset_prefix_cache(self) -> bool:
        """Forget all published content, if no block is held. Returns whether it did; False has changed nothing."""
        if self.block_pool.num_held:
            return False
        self._forget_content()
        return True

    def take_events(self) -> list[KVEvent]:
        """Return and clear what has changed in what is published; nothing if events are off."""
        return self._log.take() if self._log is not None else []

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        """Return and restart the statistics; None if they are off."""
        return self._counts.take()

    # ---- steps and epochs

    def begin_step(self, step_id: int) -> None:
        """From now on, blocks that become full are reserved, not published. The step before is launched.

        Raises:
            LocalProtocolError: the number is not above those of all steps that have not ended.
        """
        self._steps.begin(step_id)
        self._takes_part = self._steps.takes_part

    def launch_step(self, step_id: int) -> None:
        """The step has been handed to the workers: nobody can be taken out of it any more.

        Raises:
            LocalProtocolError: it is not the one that is being built.
        """
        self._steps.launch(step_id)
        self._takes_part = self._steps.takes_part

    def commit(self, step_id: int) -> None:
        """The step was computed: publish what was reserved in it, also of those that have given up their blocks since.

        Raises:
            LocalProtocolError: it is not the oldest that has not ended.
        """
        self._publisher.commit(step_id)
        self._takes_part = self._steps.takes_part

    def withdraw(self, step_id: int) -> list[int]:
        """The step was not computed, nor will be those begun later: publish nothing of them.

        Slots stay with their requests, empty; these may compute them in another step.

        Returns:
            The requests whose prefix hit will not be computed by its writer: they must be freed and start over.

        Raises:
            LocalProtocolError: it has ended, or was never begun.
        """
        lost = self._publisher.withdraw(step_id)
        self._takes_part = self._steps.takes_part
        return [held.request_id for held in lost if self._held.get(held.request_id) is held]

    def withdraw_request(self, request: Request) -> list[int]:
        """Take a request out of the step being built, with all who share what it would have written, and free them.

        Returns:
            The ids of those freed, the last one scheduled first; empty if it holds nothing.
        """
        held = self._held.get(request.request_id)
        if held is None:
            return []
        freed = [*self._steps.borrowers(held), held]
        for each in freed:
            self._tables.free(each)
        return [each.request_id for each in freed]

    def new_epoch(self) -> int:
        """Forget all content at once, while requests go on; return the number of the epoch that begins.

        Who holds blocks keeps them and publishes nothing any more, in no step either.
        """
        self.epoch += 1
        self._forget_content()
        self._steps.forget_reservations()
        for held in self._held.values():
            held.can_publish = False
            held.forget_horizon()
        return self.epoch

    # ---- looking in

    def holders(self) -> set[int]:
        """Return the ids of the requests that have block tables."""
        return set(self._held)

    def stats(self) -> KVCacheStats:
        pool = self.block_pool
        return KVCacheStats(
            queries=self._counts.queries,
            hits=self._counts.hits,
            blocks_used=pool.num_held,
            blocks_cached=pool.num_published,
            blocks_total=pool.num_blocks - 1,
        )

    def check_integrity(self) -> None:
        """Raise `InvariantError` if tables, steps and pool contradict each other."""
        check_integrity(self.block_pool, self._steps, self._groups, self._held)

    # ---- inside

    def _checked_ids(self, block_ids: Iterable[int]) -> set[int]:
        found = set(block_ids)
        for block_id in found:
            if not 0 <= block_id < self.block_pool.num_blocks:
                raise ValueError(f"block {block_id}: there are {self.block_pool.num_blocks}")
        return found - {NULL_BLOCK_ID}

    def _first_full(self, num_hit_tokens: int) -> int:
        """Return with how many final tokens a newcomer has the first full block of its own."""
        return num_hit_tokens + self._hash_block_size if self.enable_caching else UNLIMITED

    def _admit(
        self,
        request: Request,
        hit: KVCacheBlocks,
        start: KVCacheBlocks,
        *,
        num_hit_tokens: int,
        num_slots: int,
        next_full: int,
    ) -> KVCacheBlocks | None:
        """Admit a newcomer whose tables begin with `start`, all that it takes of its hit."""
        missing = self._tables.num_missing(start, num_slots)
        if not self._lookups.fits(request, start, sum(missing)):
            self._lookups.was_refused(request, hit, num_hit_tokens)
            return None
        new = self._tables.admit(request.request_id, start, num_slots, missing, next_full)
        self._lookups.was_taken(request, num_hit_tokens)
        if self.enable_caching and not request.skip_reading_prefix_cache:
            self._counts.record(request, num_hit_tokens)
        return new

    def _forget_content(self) -> None:
        self._lookups.clear()
        self.block_pool.unpublish_all()
        self._counts.note_reset()
