"""Our KV cache manager behind the face of vLLM 0.33's, for vLLM's scheduler and for vLLM's own tests of it.

All decisions are our manager's. What vLLM's scheduler reads of its own manager is translated here: blocks as objects,
`coordinator`, `block_pool`, requests that carry their block hashes, and the checks of room that vLLM's manager makes
for its scheduler (`full_sequence_must_fit`, `reserved_blocks`, the watermark). Steps are not used, because vLLM has
none: content is published at once.

A configuration with something that our manager does not offer raises `NotOffered`.

Needs vLLM: the environment of `make bench-peers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from vllm.utils.math_utils import cdiv
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import RequestStatus

from mmcached.compat import kv_cache_manager
from mmcached.engine.kv import blocks
from mmcached.engine.kv.config import KVCacheConfig
from scripts.verification.vllm_blocks import Block, Pool, group_manager, ids_of
from scripts.verification.vllm_forms import NotOffered, RequestView, our_config, their_event, their_stats


class Coordinator:
    """What vLLM's scheduler reads of its coordinator."""

    enable_partial_hash_hits = False
    num_reprefillable_tokens = 0
    retention_interval = None

    def __init__(self, manager: KVCacheManager, config: Any, config_of_ours: KVCacheConfig, use_eagle: bool) -> None:
        self._manager = manager
        self.block_pool = manager.block_pool
        self.hash_block_size = config_of_ours.hash_block_size
        self.scheduler_block_size = config_of_ours.scheduler_block_size
        self.group_block_sizes = tuple(config_of_ours.block_sizes)
        self.eagle_group_ids = set(range(len(config.kv_cache_groups))) if use_eagle else set()
        self.single_type_managers = tuple(
            group_manager(manager.ours, manager.block_pool, config, index)
            for index in range(len(config.kv_cache_groups))
        )

    def get_num_blocks_to_allocate(  # noqa: PLR0917 (vLLM's signature)
        self,
        request_id: str,
        num_tokens: int,
        new_computed_blocks: Sequence[Sequence[Block]],
        num_encoder_tokens: int,
        total_computed_tokens: int,
        num_local_computed_tokens: int,
        num_tokens_main_model: int,
        **options: object,
    ) -> int:
        request: Any = SimpleNamespace(request_id=request_id, num_computed_tokens=num_local_computed_tokens)
        return self._manager.ours.num_blocks_to_allocate(
            request,
            num_tokens_main_model - total_computed_tokens,
            0,
            self._manager.our_blocks(new_computed_blocks),
            num_lookahead_tokens=num_tokens - num_tokens_main_model,
            num_external_computed_tokens=total_computed_tokens - num_local_computed_tokens,
            num_encoder_tokens=num_encoder_tokens,
        )


class KVCacheManager:
    """vLLM's manager; every decision is made by `ours`."""

    mamba_shared_prefix_checkpoint = False
    retained_hit_group_ids = ()

    def __init__(  # noqa: PLR0917 (vLLM's signature)
        self,
        kv_cache_config: Any,
        max_model_len: int,
        scheduler_block_size: int,
        hash_block_size: int,
        max_in_flight_tokens: int | None = None,
        enable_caching: bool = True,
        use_eagle: bool = False,
        num_hash_lookahead_tokens: int = 0,
        num_prefill_lookahead: int = 0,
        log_stats: bool = False,
        enable_kv_cache_events: bool = False,
        dcp_world_size: int = 1,
        pcp_world_size: int = 1,
        metrics_collector: object = None,
        watermark: float = 0.0,
        enable_mamba_shared_prefix_checkpoint: bool = False,
    ) -> None:
        config = our_config(kv_cache_config, dcp_world_size, enable_caching=enable_caching, use_eagle=use_eagle)
        if enable_caching and hash_block_size != config.hash_block_size:
            raise NotOffered("hits that end inside a block")
        if num_prefill_lookahead > 1:
            raise NotOffered("more than one module of multi-token prediction")
        if metrics_collector is not None:
            raise NotOffered("lifetimes of single blocks")
        self.kv_cache_config = kv_cache_config
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.use_eagle = use_eagle
        self.log_stats = log_stats
        self.ours = kv_cache_manager.KVCacheManager(
            config,
            max_model_len,
            enable_caching,
            use_eagle=use_eagle,
            log_stats=log_stats,
            enable_kv_cache_events=enable_kv_cache_events,
            num_hash_lookahead_tokens=num_hash_lookahead_tokens,
        )
        self._hash_block_size = config.hash_block_size
        self._most_in_flight = max_model_len if max_in_flight_tokens is None else max_in_flight_tokens
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        self.num_kv_cache_groups = len(kv_cache_config.kv_cache_groups)
        self.block_pool = Pool(self.ours)
        self.coordinator = Coordinator(self, kv_cache_config, config, use_eagle)
        self.empty_kv_cache_blocks = KVCacheBlocks(tuple(() for _ in range(self.num_kv_cache_groups)))

    # ---- lookups and slots

    def get_computed_blocks(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int]:
        found, num_found = self.ours.get_computed_blocks(self._view(request), max_cache_hit_length)
        return self._their_blocks(found.ids), num_found, 0

    def get_computed_blocks_for_connector(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[KVCacheBlocks, int, int, bool]:
        return *self.get_computed_blocks(request, max_cache_hit_length), False

    def truncate_computed_blocks(self, found: KVCacheBlocks, num_computed_tokens: int) -> KVCacheBlocks:
        sizes = self.coordinator.group_block_sizes
        return KVCacheBlocks(
            tuple(group[: num_computed_tokens // size] for group, size in zip(found.blocks, sizes, strict=True))
        )

    def allocate_slots(  # noqa: PLR0917 (vLLM's signature)
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> KVCacheBlocks | None:
        view = self._view(request)
        hit = self.our_blocks(new_computed_blocks.blocks if new_computed_blocks is not None else ())
        is_waiting = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        num_spare = self.watermark_blocks if has_scheduled_reqs and is_waiting else 0
        if full_sequence_must_fit and not self.ours.can_admit(
            view, hit, most_new_tokens=self._most_in_flight, num_spare_blocks=num_spare
        ):
            return None
        num_done = request.num_computed_tokens + num_new_computed_tokens + num_external_computed_tokens
        self.remove_skipped_blocks(request.request_id, max(0, num_done - request.num_in_flight_tokens))
        options: dict[str, int] = {
            "num_external_computed_tokens": num_external_computed_tokens,
            "num_lookahead_tokens": num_lookahead_tokens,
            "num_encoder_tokens": num_encoder_tokens,
        }
        if num_spare or reserved_blocks:
            num_taken = self.ours.num_blocks_to_allocate(view, num_new_tokens, num_new_computed_tokens, hit, **options)
            if num_taken + num_spare + reserved_blocks > self.ours.block_pool.num_free:
                return None
        given = self.ours.allocate_slots(
            view,
            num_new_tokens,
            num_new_computed_tokens,
            hit if num_new_computed_tokens else None,
            num_draft_tokens=min(num_new_tokens, max(0, num_done + num_new_tokens - request.num_tokens)),
            delay_cache_blocks=delay_cache_blocks,
            num_in_flight_tokens=request.num_in_flight_tokens,
            **options,
        )
        if given is None:
            return None
        for manager, block_ids in zip(self.coordinator.single_type_managers, given.ids, strict=True):
            if manager.records_new_block_ids and manager.kv_cache_group_id not in skip_zeroing_group_ids:
                manager.new_block_ids += filter(None, block_ids)
        return self._their_blocks(given.ids)

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        self.ours.cache_blocks(self._view(request), num_computed_tokens)

    def free(self, request: Any) -> None:
        self.ours.free(self._view(request))

    def pop_blocks_for_free(self, request: Any) -> list[Block]:
        return self.block_pool.of(self.ours.pop_blocks_for_free(self._view(request)))

    def remove_skipped_blocks(
        self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None
    ) -> None:
        request: Any = SimpleNamespace(request_id=request_id)
        self.ours.remove_skipped_blocks(request, processed_computed_tokens)

    def evict_blocks(self, block_ids: set[int]) -> None:
        self.ours.evict_blocks(block_ids)

    def reset_prefix_cache(self) -> bool:
        return self.ours.reset_prefix_cache()

    # ---- inspection

    @property
    def usage(self) -> float:
        return self.ours.usage

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        return self._their_blocks(self.ours.get_block_ids(request_id))

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.ours.get_block_ids(request_id)

    def get_block_ids_for_computed_tokens(self, request_id: str, num_computed_tokens: int) -> tuple[list[int], ...]:
        return tuple(
            ids[: cdiv(num_computed_tokens, manager.block_size)] if _is_self_attention(manager.kv_cache_spec) else ids
            for manager, ids in zip(
                self.coordinator.single_type_managers, self.ours.get_block_ids(request_id), strict=True
            )
        )

    def get_num_common_prefix_blocks(self, running_request_id: str) -> list[int]:
        return [0] * self.num_kv_cache_groups

    def estimate_cached_tokens(self, request: Any) -> int:
        """Return how far the request's published blocks reach, in the group where they reach least."""
        lengths = []
        for manager, table in zip(
            self.coordinator.single_type_managers, self.get_blocks(request.request_id).blocks, strict=True
        ):
            if not isinstance(manager.kv_cache_spec, specs.CrossAttentionSpec):
                published = [index for index, block in enumerate(table, 1) if block.block_hash is not None]
                lengths.append(max(published, default=0) * manager.block_size)
        return min(lengths, default=0)

    def create_kv_cache_blocks(self, found: tuple[Sequence[Block], ...]) -> KVCacheBlocks:
        return KVCacheBlocks(found) if any(found) else self.empty_kv_cache_blocks

    def prefix_cache_lookup_enabled(self, request: Any) -> bool:
        return self.enable_caching and not request.skip_reading_prefix_cache

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        """Do nothing: our manager counts what it admits."""

    def make_prefix_cache_stats(self) -> PrefixCacheStats | None:
        return their_stats(self.ours.make_prefix_cache_stats())

    @property
    def prefix_cache_stats(self) -> kv_cache_manager.PrefixCacheStats | None:
        return self.ours.prefix_cache_stats

    def take_events(self) -> list[Any]:
        return [their_event(event) for event in self.ours.take_events()]

    # ---- what vLLM's scheduler asks in each step

    def new_step_starts(self) -> None:
        """Do nothing: our steps are not used."""

    def take_new_block_ids(self) -> list[int]:
        return [taken for manager in self.coordinator.single_type_managers for taken in manager.take_new_block_ids()]

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        for manager in self.coordinator.single_type_managers:
            if manager.records_new_block_ids:
                table = self.ours.block_table(request_id, manager.kv_cache_group_id)
                manager.new_block_ids += table[start_token // manager.block_size :]

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        return [], []

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        return {}

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        return []

    # ---- internals

    def our_blocks(self, found: Sequence[Sequence[Block]]) -> blocks.KVCacheBlocks:
        if not any(found):
            return self.ours.create_empty_block_list()
        return self.ours.blocks_of([ids_of(group) for group in found])

    def _their_blocks(self, ids: Sequence[Sequence[int]]) -> KVCacheBlocks:
        if not any(ids):
            return self.empty_kv_cache_blocks
        return KVCacheBlocks(tuple(self.block_pool.of(group) for group in ids))

    def _view(self, request: Any) -> Any:
        size = self._hash_block_size
        self.block_pool.lengths.update((bytes(each), end * size) for end, each in enumerate(request.block_hashes, 1))
        return RequestView(request, size)


def _is_self_attention(spec: Any) -> bool:
    return isinstance(spec, specs.AttentionSpec) and not isinstance(spec, specs.CrossAttentionSpec)
