"""What must hold after every step, whatever has happened: books against themselves, against each other, and against
what the workers really hold.

    encoder   ready  ⊆  what each rank holds  ⊆  ready + lingering; counts never negative, never above their size
              a key that is encoded lives until it is told as freed, in one committed step, or all is cleared
    KV        a block that two requests name holds the same tokens, items and tenant for both
    rows      listed  ⊆  what rank 0's store has

Knows nothing of what a world is asked for. Every finding is an AssertionError or an InvariantError.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.engine import Request, Scheduler
from mmcached.engine.encoder.encoder_budget import service_encoder_budget
from mmcached.engine.encoder.worker_check import check_encoder_caches
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.wire.config import ServiceConfig
from tests.engine.integrity import check_scheduler
from tests.worker.integrity import check_runner
from tests.world.rank import Rank

ALL_ROWS_EVERY = 4
"""The whole listing is compared with the store in one of so many audits, what is new in it in each."""


class KeyLives:
    """Which keys workers may hold, from what they have been told: encoded, and not yet told as freed."""

    def __init__(self) -> None:
        self.alive: set[str] = set()

    def planned(self, step: ScheduledStep) -> None:
        """A step goes to the workers; it may fail, but what it encodes may be there."""
        assert len(set(step.freed_keys)) == len(step.freed_keys), f"told twice: {step.freed_keys}"
        self.alive |= {item.key for item in step.encode}

    def committed(self, step: ScheduledStep) -> None:
        encoded = {item.key for item in step.encode}
        unknown = set(step.freed_keys) - self.alive
        assert not unknown, f"step {step.step_id} frees {sorted(unknown)}, which no worker holds: told twice"
        self.alive -= set(step.freed_keys) - encoded

    def cleared(self) -> None:
        self.alive.clear()


class Audit:
    """Looks at one engine's books and its ranks. Changes nothing."""

    def __init__(self, config: ServiceConfig, scheduler: Scheduler) -> None:
        self.lives = KeyLives()
        self._config = config
        self._scheduler = scheduler
        self._num_audits = 0
        self._seen_rows: dict[bytes, object] = {}

    def check_step(self, step: ScheduledStep) -> None:
        """Check a step that was just made against its budgets, and the books with it in flight."""
        config, book = self._config, self._scheduler.encoder_cache_manager
        assert sum(chunk.num_tokens for chunk in step.chunks) <= config.max_num_batched_tokens
        assert all(chunk.num_tokens > 0 for chunk in step.chunks)
        ids = [chunk.request.request_id for chunk in step.chunks]
        assert len(set(ids)) == len(ids)
        assert len(step.request_ids()) <= self._scheduler.num_running <= config.max_num_seqs
        features = (item.request.features[item.input_id] for item in step.encode)
        to_encode = sum(feature.num_embeds for feature in features if not feature.has_output)
        assert to_encode <= service_encoder_budget(config).compute_budget
        assert len({item.key for item in step.encode}) == len(step.encode)
        requests = step.requests()
        assert len(requests) == 1 or not any(request.alone_until for request in requests), "a suspect is not alone"
        assert 0 <= book.num_free_slots <= book.num_freeable_slots <= book.cache_size
        check_scheduler(self._scheduler)
        self._check_tables()

    def check_rest(self, ranks: Sequence[Rank]) -> None:
        """Check everything, with no step in flight."""
        scheduler = self._scheduler
        check_scheduler(scheduler)
        for rank in ranks:
            check_runner(rank.runner)
        self._check_encoder(ranks)
        self._check_tables()
        self._check_rows(ranks[0])

    def check_end(self, ranks: Sequence[Rank]) -> None:
        """Check that nobody holds anything; only what is cached is left."""
        scheduler = self._scheduler
        book = scheduler.encoder_cache_manager
        assert not scheduler.has_work()
        assert scheduler.num_running == scheduler.num_waiting == 0
        assert scheduler.kv_cache_manager.usage == 0.0
        assert not scheduler.kv_cache_manager.holders()
        assert book.num_freeable_slots == book.cache_size
        assert not book.holders()
        assert not book.lingering_keys()
        index = scheduler.tensor_prefix_index.stats()
        assert (index.requests, index.reserved) == (0, 0)

    def _check_encoder(self, ranks: Sequence[Rank]) -> None:
        book = self._scheduler.encoder_cache_manager
        ready, lingering = book.ready_keys(), book.lingering_keys()
        check_encoder_caches(ready, lingering, {rank.rank: rank.encoder_keys() for rank in ranks}, step=-1)
        assert self.lives.alive == ready | lingering, f"told {self.lives.alive}, listed {ready}, lingering {lingering}"
        assert not ready & lingering
        assert 0 <= book.num_free_slots <= book.num_freeable_slots <= book.cache_size

    def _check_tables(self) -> None:
        block_size = self._config.block_size
        owners: dict[int, tuple[Request, int]] = {}
        for request in self._scheduler.running:
            for index, block_id in enumerate(self._scheduler.kv_cache_manager.block_table(request.request_id)):
                assert block_id > 0
                owner, at = owners.setdefault(block_id, (request, index))
                if owner is not request:
                    end = (index + 1) * block_size
                    assert at == index, f"block {block_id} is number {at} of {owner} and number {index} of {request}"
                    assert end < min(owner.num_tokens, request.num_tokens) + 1, f"{owner} and {request} fill {block_id}"
                    assert _content(owner, end) == _content(request, end), f"{request} reads what {owner} has written"

    def _check_rows(self, rank_0: Rank) -> None:
        listed = self._scheduler.tensor_prefix_index.listed.rows
        if rank_0.store is None:
            assert not listed
            return
        self._num_audits += 1
        is_whole = not self._num_audits % ALL_ROWS_EVERY
        for digest, rows in listed.items():
            if not is_whole and self._seen_rows.get(digest) == rows:
                continue
            for key, num_rows in rows.items():
                there = rank_0.store.usable_prefix([digest], self._config.block_size, [key])
                assert num_rows <= there, f"{num_rows} rows of {key} are listed, {there} are there"
        self._seen_rows = dict(listed)


def _content(request: Request, end: int) -> object:
    """Return what makes the KV of a request's first tokens."""
    items = [(feature.offset, feature.mm_hash) for feature in request.features if feature.offset < end]
    return request.token_ids[:end], items, request.tenant
