"""Which KV blocks each request holds, and which prefixes need not be computed again.

One group of layers with full attention. A request's block table only ever grows, and goes back whole:

     | held, computed | prefix hit | new |
     0                             ^     ^ num_computed + num_new_computed + num_new tokens
                                   blocks from here on are handed out now

Inside a step, `reserve -> commit -> publish`: a block that becomes full is found by others only after `commit`, since
until then nobody has written it. `withdraw` forgets what would have been published; the slots stay with their request,
empty. The seed's face, without a step, publishes at once: there the caller vouches that it computes before anybody
reads.

Knows nothing of scheduling order or of the tensors behind the blocks. Invariant: a published block holds exactly the
KV that its digest names.

Source: vLLM's KVCacheManager; free order, null block and last-token rule as there. Publication at commit is a
difference.
"""

from __future__ import annotations

from itertools import islice
from operator import ne

from mmcached.engine.kv.block_hash import block_hasher
from mmcached.engine.kv.block_pool import BlockPool
from mmcached.engine.kv.blocks import KVCacheBlocks, KVCacheConfig, one_group
from mmcached.engine.open_step import OpenStep
from mmcached.engine.request import Request
from mmcached.wire.errors import InvariantError
from mmcached.wire.stats import KVCacheStats


class KVCacheManager:
    """The block tables of all running requests and the prefix cache.

    Args:
        num_blocks: size of the pool, the null block included.
        block_size: tokens per block.
        enable_caching: whether blocks are published and found at all.
        caching_hash_algo: what makes the content keys: "sha256", "blake3", or "builtin", which is taken for "sha256".

    Raises:
        ConfigError: a size or an algorithm that cannot be.
    """

    def __init__(
        self, num_blocks: int, block_size: int, enable_caching: bool = True, *, caching_hash_algo: str = "sha256"
    ) -> None:
        self.config = KVCacheConfig(num_blocks, block_size, enable_caching)
        self.block_size = block_size
        self._hasher = block_hasher(caching_hash_algo)
        self.block_pool = BlockPool(num_blocks)
        self._empty = one_group(self.block_pool)
        self._tables: dict[int, list[int]] = {}
        self._num_published: dict[int, int] = {}  # leading blocks of the table whose content is final
        self._step = OpenStep()
        self._to_publish: dict[int, tuple[Request, int]] = {}  # of the open step: request, tokens computed after it
        self._queries = 0
        self._hits = 0

    @property
    def usage(self) -> float:
        """Share of the blocks that are held, 0 to 1."""
        usable = self.config.num_blocks - 1
        return self.block_pool.num_held / usable if usable else 0.0

    # ---- the seed's face

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """Return the longest published prefix of a request and its length in tokens. Changes nothing.

        The last token is never taken from the cache: computing it is what gives the next one. Hits are whole blocks, so
        a prompt that is cached to the end computes its last block again.
        """
        if not self.config.enable_caching or request.skip_reading_prefix_cache:
            return self._empty, 0
        self._hasher.extend_block_hashes(request, self.block_size)
        usable = islice(request.block_hashes, (request.num_tokens - 1) // self.block_size)
        found = self.block_pool.get_cached_prefix(usable)
        return one_group(self.block_pool, found), len(found) * self.block_size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
    ) -> KVCacheBlocks | None:
        """Give a request the slots for its next tokens, after what it has computed and what was just found for it.

        Args:
            num_new_tokens: to be computed now, at least 1.
            num_new_computed_tokens: length of the prefix hit; only for a request that holds nothing yet.
            new_computed_blocks: the blocks of that hit, as `get_computed_blocks` returned them.

        Returns:
            The newly handed-out blocks, without the hit's, perhaps none; None if there are not enough free blocks, and
            then nothing has changed.

        Raises:
            ValueError: no new tokens, a prefix hit for a request that holds blocks, or one that was evicted since.
        """
        hit_ids = new_computed_blocks.ids[0] if new_computed_blocks is not None else ()
        if num_new_tokens < 1:
            raise ValueError(f"num_new_tokens = {num_new_tokens}: at least 1")
        if len(hit_ids) * self.block_size != num_new_computed_tokens:
            raise ValueError(f"{len(hit_ids)} blocks found are not {num_new_computed_tokens} tokens")
        request_id = request.request_id
        table = self._tables.get(request_id)
        if hit_ids and table:
            raise ValueError(f"request {request_id} holds {len(table)} block(s): no prefix hit can be put before them")
        if any(map(ne, map(self.block_pool.block_hash, hit_ids), request.block_hashes)):
            raise ValueError(f"request {request_id}: blocks of the hit were evicted since; look it up again")

        num_tokens = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        num_held = len(hit_ids) if table is None else len(table) + len(hit_ids)
        num_new_blocks = -(-num_tokens // self.block_size) - num_held
        new_ids = []
        if num_new_blocks > 0 or table is None:
            if num_new_blocks + self.block_pool.num_unreferenced(hit_ids) > self.block_pool.num_free:
                return None
            self.block_pool.touch(hit_ids)  # before new blocks are taken: a hit must not be evicted for its own request
            new_ids = self.block_pool.get_new_blocks(num_new_blocks)
            if table is None:
                table = self._tables[request_id] = [*hit_ids, *new_ids]
                self._num_published[request_id] = len(hit_ids)
            else:
                table += new_ids
        # What is final is decided now: slots beyond the request's tokens are for guesses, and another token may take a
        # guess's place before the commit.
        num_final = min(num_tokens, request.num_tokens)
        if num_final // self.block_size > self._num_published[request_id]:  # else no block has become full
            if self._step.is_open:
                self._to_publish[request_id] = request, num_final
            else:
                self.cache_blocks(request, num_final)
        return one_group(self.block_pool, new_ids) if new_ids else self._empty

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Publish a request's full blocks up to this many computed tokens. Those published before stay as they are."""
        if not self.config.enable_caching:
            return
        request_id, publish = request.request_id, self.block_pool.publish
        num_published = self._num_published[request_id]
        num_full = min(num_computed_tokens, request.num_tokens) // self.block_size
        if num_full <= num_published:
            return
        self._hasher.extend_block_hashes(request, self.block_size)
        table = self._tables[request_id]
        for index in range(num_published, num_full):
            publish(table[index], request.block_hashes[index])
            self._num_published[request_id] = index + 1

    def free(self, request: Request) -> None:
        """Take back all blocks of a request; what it published stays findable. Holding nothing changes nothing.

        The tail of a sequence is given up before its head, because a prefix without its head is useless.
        """
        table = self._tables.pop(request.request_id, [])
        self._num_published.pop(request.request_id, None)
        self._to_publish.pop(request.request_id, None)
        self.block_pool.free_blocks(table[::-1])

    def get_block_ids(self, request_id: int) -> tuple[list[int], ...]:
        """Return a copy of a request's block table, per group; empty if it holds nothing."""
        return (list(self._tables.get(request_id, ())),)

    def reset_prefix_cache(self) -> bool:
        """Forget all published content, if no block is held. Returns whether it did; False has changed nothing."""
        if self.block_pool.num_held:
            return False
        self.block_pool.unpublish_all()
        return True

    # ---- steps

    def begin_step(self, step_id: int) -> None:
        """From now on, blocks that become full are reserved, not published.

        Raises:
            LocalProtocolError: another step is open.
        """
        self._step.begin(step_id)

    def commit(self, step_id: int) -> None:
        """The step was computed: publish the full blocks of those that still hold what they reserved in it.

        Raises:
            LocalProtocolError: this step is not open.
        """
        self._step.end(step_id)
        to_publish, self._to_publish = self._to_publish, {}
        for request, num_tokens in to_publish.values():
            self.cache_blocks(request, num_tokens)

    def withdraw(self, step_id: int) -> None:
        """The step was not computed: publish nothing of it.

        Raises:
            LocalProtocolError: this step is not open.
        """
        self._step.end(step_id)
        self._to_publish.clear()

    # ---- looking in

    def record_admission(self, request: Request, num_hit_tokens: int) -> None:
        """Count a lookup that led to a first admission; requests that do not read are not counted."""
        if self.config.enable_caching and not request.skip_reading_prefix_cache and not request.was_admitted:
            self._queries += request.num_tokens
            self._hits += num_hit_tokens

    def holders(self) -> set[int]:
        """Return the ids of the requests that have a block table."""
        return set(self._tables)

    def stats(self) -> KVCacheStats:
        pool = self.block_pool
        return KVCacheStats(
            queries=self._queries,
            hits=self._hits,
            blocks_used=pool.num_held,
            blocks_cached=pool.num_published,
            blocks_total=pool.num_blocks - 1,
        )

    def check_integrity(self) -> None:
        """Raise `InvariantError` if the tables and the pool contradict each other."""
        self.block_pool.check_integrity(self._tables.values())
        if self._tables.keys() != self._num_published.keys() or not self._to_publish.keys() <= self._tables.keys():
            raise InvariantError("a request has something to publish, but no block table")
        for request_id, num_published in self._num_published.items():
            table = self._tables[request_id]
            are_published = [self.block_pool.block_hash(block_id) is not None for block_id in table]
            if are_published != [index < num_published for index in range(len(table))]:
                raise InvariantError(
                    f"request {request_id}: not exactly the first {num_published} blocks are published"
                )
        if self._to_publish and not self._step.is_open:
            raise InvariantError("something is to be published by a step that is not open")
