"""KV cache: allocates KV blocks to requests and finds cached prefixes.

A request's block tables, one per group of layers, only grow, and are freed as a whole:

     | computed | prefix hit | external |    new     | lookahead |
     0          ^            ^          ^            ^           ^
     held       shared now   delivered  computed in  slots for a drafter,
     already                 by others  this step    never published
     allocated now: all slots after the hit that have no block yet

`reserve -> commit -> publish`: inside a step, a block that becomes full is reserved (`steps`). Requests scheduled after
its writer may share it; others find it after `commit`, since until then it has not been written. `withdraw` undoes all
of it. Outside a step a block is published at once: the caller guarantees that it is computed before it is read.

Most calls for a running request change nothing: they stay within its horizon (`request_blocks`).

Invariant: a published block holds exactly the KV that its content key names.

Source: vLLM's KVCacheManager (method names, block layout, free order, null block, last-token rule). Publication at
commit, fences and epochs are differences.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.cache.hashing.block_hash import block_hasher
from mmcached.engine.kv.blocks import KVCacheBlocks
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.events import PublishedLog
from mmcached.engine.kv.groups.mamba import MambaAlign, chunk_end
from mmcached.engine.kv.lookup.coordinator import Coordinator
from mmcached.engine.kv.lookup.lookups import PrefixLookups
from mmcached.engine.kv.pool.block_pool import NULL_BLOCK_ID, BlockPool
from mmcached.engine.kv.publisher import Publisher
from mmcached.engine.kv.request_hashes import RequestHashes
from mmcached.engine.kv.slot_allocator import SlotAllocator
from mmcached.engine.kv.steps import Steps
from mmcached.engine.kv.tables import BlockTables
from mmcached.engine.steps.request import Request, RequestId
from mmcached.wire.engine_stats import KVCacheStats
from mmcached.wire.errors import ConfigError
from mmcached.wire.messages.kv_events import KVEvent


class KVCache:
    """Block tables of all running requests, and the prefix cache. Can be pickled, also within a step.

    Args:
        max_model_len: tokens; no request gets more slots.
        caching_hash_algo: name of the hash function (`block_hash.block_hasher`).
        use_eagle: whether a drafter needs the hidden state before the first new token, so that the last block found is
            recomputed. Unnecessary, and ignored, with hash lookahead.
        enable_kv_cache_events: whether `take_events` returns events.
        num_hash_lookahead_tokens: tokens after a block that its hash also covers.
        hash_seed: seed of the block hashes; equal seeds make equal hashes, with any algorithm.

    Attributes:
        req_to_block_hashes: block hashes by request id, from the first lookup or publication to `free_block_hashes`.
        caching_hash_fn: computes one block hash from the parent's hash, token ids and extra keys.
        epoch: number of calls of `new_epoch`.

    Raises:
        ConfigError: a size or the algorithm is invalid, or the layers do not allow caching.
    """

    def __init__(  # noqa: PLR0917 (vLLM's signature)
        self,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        enable_caching: bool = True,
        caching_hash_algo: str = "sha256",
        use_eagle: bool = False,
        enable_kv_cache_events: bool = False,
        *,
        num_hash_lookahead_tokens: int = 0,
        hash_seed: str = "",
    ) -> None:
        if max_model_len < 1:
            raise ConfigError("max_model_len", max_model_len, "at least 1 token")
        if num_hash_lookahead_tokens < 0:
            raise ConfigError("num_hash_lookahead_tokens", num_hash_lookahead_tokens, "at least 0 tokens")
        if enable_caching and not kv_cache_config.is_cacheable:
            raise ConfigError("enable_caching", True, "False: cross-attention and states in mode none keep nothing")
        config, pool_size = kv_cache_config, kv_cache_config.num_blocks
        hasher = block_hasher(caching_hash_algo, hash_seed)
        self.config = config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.caching_hash_fn = hasher.hash_block
        self.epoch = 0

        self._hashes = RequestHashes(hasher, config.hash_block_size, num_hash_lookahead_tokens)
        self.req_to_block_hashes = self._hashes.by_request
        self._log = PublishedLog(config, self._hashes) if enable_kv_cache_events else None
        pool = self.block_pool = BlockPool(pool_size, log=self._log)
        steps = self._steps = Steps()
        self.coordinator = Coordinator(config, pool, steps, int(use_eagle and not num_hash_lookahead_tokens))
        self._groups = self.coordinator.groups
        self._has_align = any(isinstance(group.kind, MambaAlign) for group in self._groups)
        self._tables = BlockTables(config, pool, steps, self._groups, max_model_len)
        self._held = self._tables.held
        self._empty = self._tables.empty
        self._publisher = Publisher(pool, steps, self._groups, config.hash_block_size, self._log)
        self._lookups = PrefixLookups(pool, steps, self._hashes, self.coordinator, self._empty)
        self._allocator = SlotAllocator(
            self._tables,
            steps,
            self._hashes,
            self._lookups,
            self._publisher,
            is_caching=enable_caching,
            hash_block_size=config.hash_block_size,
            max_model_len=max_model_len,
        )

    # ---- lookups and slots

    def get_computed_blocks(self, request: Request, max_num_tokens: int | None = None) -> tuple[KVCacheBlocks, int]:
        """Return the longest cached prefix of a request and its length in tokens. Changes nothing.

        The last token is never part of a hit, because computing it yields the next token. Hits are whole blocks, so a
        fully cached prompt recomputes its last block.

        Args:
            max_num_tokens: longest hit that the caller can use; None for no limit.
        """
        if not self.enable_caching or request.skip_reading_prefix_cache:
            return self._empty, 0
        return self._lookups.find(request, max_num_tokens)

    def allocate_slots(  # noqa: PLR0917 (vLLM's signature)
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
        num_encoder_tokens: int = 0,
    ) -> KVCacheBlocks | None:
        """Allocate slots for a request's next tokens, after its computed tokens and its prefix hit.

        Args:
            num_new_tokens, …: counts of tokens; see `SlotAllocator.allocate`.
            new_computed_blocks: the blocks of the prefix hit, as `get_computed_blocks` returned them.
            delay_cache_blocks: whether the content arrives later; nothing is published until `cache_blocks`.

        Returns:
            The new parts of the block tables, after the hit, possibly empty; None if too few blocks are free, or if
            the hit's Mamba state will be computed by the open step. Then nothing has changed, except that windows have
            moved to the request's position.

        Raises:
            ValueError: no token is requested, a count is invalid, a prefix hit was given for a request that holds
                blocks, or the hit was evicted since.
            LocalProtocolError: a step is in flight, or content that the request relies on was withdrawn: it can only be
                freed.
        """
        held, steps = self._held.get(request.request_id), self._steps
        if (
            held is not None
            and 0
            <= num_draft_tokens
            <= num_new_tokens
            <= held.horizon - request.num_computed_tokens - num_lookahead_tokens
            and num_new_tokens
            and new_computed_blocks is None
            and not (num_new_computed_tokens or num_external_computed_tokens or num_encoder_tokens)
            and not steps.is_launched
            and num_lookahead_tokens >= 0 <= num_in_flight_tokens
        ):
            held.in_step = steps.num_begun
            return self._empty
        return self._allocator.allocate(
            request,
            held,
            new_computed_blocks,
            num_new_tokens,
            num_new_computed_tokens,
            num_external_computed_tokens,
            num_draft_tokens,
            num_lookahead_tokens,
            num_in_flight_tokens,
            num_encoder_tokens,
            delay_cache_blocks,
        )

    def can_admit(self, request: Request, hit: KVCacheBlocks, *, most_new_tokens: int, num_spare_blocks: int) -> bool:
        """Return whether all of a new request fits after its hit now, with `num_spare_blocks` to spare.

        A refusal is remembered as in `allocate_slots`, so asking again is cheap.
        """
        # Null blocks come first, so a table that begins with another block has none.
        num_null = sum(ids.count(NULL_BLOCK_ID) for ids in hit.ids if ids and ids[0] == NULL_BLOCK_ID)
        num_hit_blocks = sum(map(len, hit.ids)) - num_null
        num_lacking = self.num_lacking_blocks(request, request.num_tokens, most_new_tokens) - num_hit_blocks
        if self._lookups.fits(request, hit, max(0, num_lacking) + num_spare_blocks):
            return True
        self._lookups.note_refused(request, hit)
        return False

    def num_lacking_blocks(self, request: Request, num_tokens: int, most_new_tokens: int) -> int:
        """Return the number of blocks that a request still needs until it has computed `num_tokens`. Changes nothing.

        At most `most_new_tokens` tokens are computed per step; between steps windows free blocks.
        """
        return self._tables.num_lacking(request.request_id, num_tokens, most_new_tokens)

    def free(self, request: Request) -> None:
        """Free all blocks of a request; its published content stays findable. No effect if it holds no blocks.

        Tails are freed before heads, because a prefix without its head is useless. The request's reservations in the
        step being built are dropped; blocks that a step in flight may use are freed when that step ends.

        Raises:
            LocalProtocolError: other requests share blocks that it would write in the step being built; free them
                first.
        """
        self._lookups.forget_request(request.request_id)
        held = self._held.get(request.request_id)
        if held is not None:
            self._steps.check_can_leave(held)
            self._tables.free(held)

    def free_block_hashes(self, request: Request) -> None:
        """Forget the block hashes of a request that has ended; a preempted request keeps them."""
        self._lookups.forget_request(request.request_id)
        self._hashes.forget_request(request)

    def reset_prefix_cache(self) -> bool:
        """Drop all published content and return True; return False, with no change, if a block is referenced."""
        if self.block_pool.num_held:
            return False
        self._forget_content()
        return True

    # ---- steps and epochs

    def begin_step(self, step_id: int) -> None:
        """Begin a step, in which full blocks are reserved, not published.

        Raises:
            LocalProtocolError: another step has not ended.
        """
        self._steps.begin(step_id)

    def launch_step(self, step_id: int) -> None:
        """Mark the step as handed to the workers; no request can join or leave it any more.

        Raises:
            LocalProtocolError: this step is not being built.
        """
        self._steps.launch(step_id)

    def commit(self, step_id: int) -> None:
        """End a step that was computed: publish its reservations, also those of requests freed since.

        Raises:
            LocalProtocolError: this step is not open.
        """
        self._publisher.commit(step_id)

    def withdraw(self, step_id: int) -> list[RequestId]:
        """End a step that was not computed: publish nothing of it.

        Requests keep their slots, empty, and may compute them in another step.

        Returns:
            The requests that rely on content of the step, such as a shared prefix: they must be freed and start over.
            With Mamba layers, all requests of the step: their states are overwritten, or have no blocks elsewhere.

        Raises:
            LocalProtocolError: this step is not open.
        """
        return [held.request_id for held in self._publisher.withdraw(step_id, self._tables.in_step())]

    def chunk_end(self, request: Request, start: int, end: int) -> int:
        """Return where a chunk of tokens `start … end - 1` should end, `end` at the latest, so that it can be shared.

        A Mamba state in mode "align" exists where a chunk ends; other layers do not mind where.
        """
        if not self._has_align:
            return end
        block_size, num_recomputed = self.config.scheduler_block_size, self.coordinator.num_recomputed
        last = request.num_tokens - max(1, self._hashes.num_lookahead_tokens) * (not num_recomputed)
        return chunk_end(
            block_size,
            start,
            end,
            prefill_end=max(request.num_prompt_tokens, request.num_tokens - 1),
            last_state=(last // block_size - num_recomputed) * block_size,
        )

    def new_epoch(self) -> int:
        """Drop all content while requests go on, and return the number of the new epoch.

        Requests keep their blocks but publish nothing any more, not even from the open step.
        """
        self.epoch += 1
        self._forget_content()
        self._steps.forget_reservations()
        for held in self._held.values():
            held.can_publish = False
            held.forget_horizon()
        return self.epoch

    # ---- inspection

    @property
    def usage(self) -> float:
        usable = self.block_pool.num_blocks - 1
        return self.block_pool.num_held / usable if usable else 0.0

    def block_table(self, request_id: RequestId, group_index: int = 0) -> Sequence[int]:
        """Return a live block table, which grows at its end as the request goes on; callers must not change it."""
        held = self._held.get(request_id)
        return held.tables[group_index] if held is not None else ()

    def holders(self) -> set[RequestId]:
        return set(self._held)

    def take_events(self) -> list[KVEvent]:
        return self._log.take_events() if self._log is not None else []

    def stats(self) -> KVCacheStats:
        pool = self.block_pool
        return KVCacheStats(
            queries=self._allocator.counts.queries,
            hits=self._allocator.counts.hits,
            blocks_used=pool.num_held,
            blocks_cached=pool.num_published,
            blocks_total=pool.num_blocks - 1,
        )

    # ---- internals

    def _forget_content(self) -> None:
        self.block_pool.unpublish_all()
