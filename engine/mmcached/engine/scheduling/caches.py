"""Steps all caches of one engine together: KV blocks, encoder outputs, rows of prefixes.

A step is begun, launched, and then committed with rank 0's report, or withdrawn. Invariant: all three caches have the
same step open, or none has.
"""

from __future__ import annotations

from mmcached.cache.checkpoints.language import Language
from mmcached.engine.encoder.encoder_budget import make_encoder_cache_manager, service_encoder_budget
from mmcached.engine.hidden_states.kept_rows import KeptRows
from mmcached.engine.hidden_states.listed_rows import Report
from mmcached.engine.hidden_states.tensor_prefix_index import TensorPrefixIndex
from mmcached.engine.kv.config import KVCacheConfig
from mmcached.engine.kv.kv_cache import KVCache
from mmcached.engine.scheduling.alignment import Alignment
from mmcached.engine.steps.request import Request
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvariantError


class Caches:
    """KV, encoder and prefix-row caches, and where chunks may begin.

    Raises `ConfigError` for budgets that could never compute an item, and as `Language.of`.
    """

    def __init__(self, config: ServiceConfig) -> None:
        self.encoder_budget = service_encoder_budget(config)
        self.kv = KVCache(
            KVCacheConfig.of_one_group(config.num_kv_blocks, config.block_size),
            config.max_model_len,
            config.enable_prefix_caching,
            config.prefix_caching_hash_algo,
            enable_kv_cache_events=config.kv_events.enable_kv_cache_events or config.routes_by_content,
            hash_seed=config.prefix_caching_hash_seed,
        )
        self.encoder = make_encoder_cache_manager(config.encoder_cache_scope, self.encoder_budget.cache_size)
        self.language = Language.of(config)
        self.alignment = Alignment(self.language.chunk_tokens, keeps_items_whole=self.language.keeps_items_whole)
        num_row_blocks = self.language.prefix_blocks(config)
        self.prefix_index = TensorPrefixIndex(config.block_size, max_blocks=max(1, num_row_blocks))
        self.kept_rows = KeptRows(self.prefix_index, self.language.row_keys if num_row_blocks else ())

    def begin_step(self, step_id: int) -> None:
        self.kv.begin_step(step_id)
        self.encoder.begin_step(step_id)
        self.prefix_index.begin_step(step_id)

    def launch_step(self, step_id: int) -> None:
        """Note that the step goes to the workers, which use its reservations even if its requests are aborted."""
        self.kv.launch_step(step_id)

    def commit(self, step_id: int, report: Report) -> None:
        """Publish the step's reservations; raises `RemoteProtocolError` if rank 0's report is invalid."""
        self.prefix_index.commit(step_id, report)
        self.kv.commit(step_id)
        self.encoder.commit(step_id)

    def withdraw(self, step_id: int, report: Report | None = None) -> None:
        """Drop the step's reservations; all its requests must start over. Raises as `commit` does."""
        self.prefix_index.withdraw(step_id, report)
        self.kv.withdraw(step_id)
        self.encoder.withdraw(step_id)

    def free(self, request: Request) -> None:
        self.kv.free(request)
        self.encoder.free(request)
        self.prefix_index.release(request)

    def free_passed_items(self, request: Request, start: int, end: int) -> None:
        """Free the encoder outputs of items that end in tokens `[start, end)`, which are computed."""
        for input_id, feature in request.features_in(start, end):
            if feature.offset + feature.length <= end:
                self.encoder.free_encoder_input(request, input_id)

    def new_epoch(self) -> None:
        """Drop all content cached or being computed with the former weights, while requests go on.

        A step in flight is committed but publishes nothing. The next plan clears the workers' prefix stores.
        """
        self.kv.new_epoch()
        self.encoder.new_epoch()
        self.prefix_index.new_epoch()

    def reset(self) -> None:
        """Clear all state, as the workers have. No request holds blocks, and no step is open."""
        self.encoder.reset()
        self.prefix_index.reset()
        if not self.kv.reset_prefix_cache():
            raise InvariantError("blocks are held although nothing is running")

    def holders(self) -> set[int]:
        return self.kv.holders() | self.encoder.holders() | self.prefix_index.holders()
