"""vLLM's configurations, requests, statistics and events in our form and the reverse, for `vllm_face`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from vllm.distributed import kv_events
from vllm.v1 import kv_cache_interface as specs
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.metrics.stats import PrefixCacheStats

from mmcached.compat import kv_cache_manager
from mmcached.engine.kv.config import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mmcached.wire.messages.kv_events import AllBlocksCleared, BlockRemoved


class NotOffered(Exception):
    """A feature of vLLM's manager that ours does not have."""


class RequestView:
    """vLLM's request with the attributes by which our manager knows one; everything else is vLLM's.

    Its block hashes are vLLM's, so our manager never computes any: `num_shareable_tokens` says how far they go.
    """

    def __init__(self, request: Any, hash_block_size: int) -> None:
        self._request = request
        self._hash_block_size = hash_block_size
        self.was_admitted = False
        self.prompt_embeds: Mapping[int, bytes] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def num_shareable_tokens(self) -> int:
        return len(self.block_hashes) * self._hash_block_size

    @property
    def token_ids(self) -> list[int]:
        return list(self._request.all_token_ids)

    @property
    def tenant(self) -> str:
        return self._request.cache_salt or ""

    @property
    def lora(self) -> Any:
        lora = self._request.lora_request
        return None if lora is None else SimpleNamespace(name=lora.lora_name, path=lora.lora_path)

    @property
    def features(self) -> list[Any]:
        return [
            SimpleNamespace(
                mm_hash=each.identifier, offset=each.mm_position.offset, length=each.mm_position.length, num_bound=0
            )
            for each in self._request.mm_features
        ]


def our_config(config: Any, num_ranks: int, *, enable_caching: bool, use_eagle: bool) -> KVCacheConfig:
    """Return our configuration for vLLM's. Raises `NotOffered`."""
    if config.prefix_cache_retention_interval is not None and enable_caching:
        raise NotOffered("retention intervals")
    if config.hisparse_host_num_blocks is not None or any(group.host_resident for group in config.kv_cache_groups):
        raise NotOffered("HiSparse")
    if use_eagle and len({group.is_eagle_group for group in config.kv_cache_groups}) > 1:
        raise NotOffered("EAGLE in some of the groups")
    groups = [
        KVCacheGroupSpec(
            group.layer_names,
            _our_spec(group.kv_cache_spec),
            num_ranks > 1 and not getattr(group.kv_cache_spec, "dcp_sharded", True),
        )
        for group in config.kv_cache_groups
    ]
    return KVCacheConfig(config.num_blocks, groups, num_ranks)


def _our_spec(spec: Any) -> KVCacheSpec:
    match spec:
        case specs.UniformTypeKVCacheSpecs():
            return _our_spec(next(iter(spec.kv_cache_specs.values())))
        case specs.RSWASpec() | specs.CircularBufferSpec() | specs.EncoderOnlyAttentionSpec():
            raise NotOffered(type(spec).__name__)
        case specs.FullAttentionSpec():
            return FullAttentionSpec(spec.block_size)
        case specs.ChunkedLocalAttentionSpec():
            return ChunkedLocalAttentionSpec(spec.block_size, spec.attention_chunk_size)
        case specs.SlidingWindowSpec() if not spec.prefix_cacheable:
            raise NotOffered("windows that are computed again after a hit")
        case specs.SlidingWindowSpec():
            return SlidingWindowSpec(spec.block_size, spec.sliding_window)
        case specs.CrossAttentionSpec():
            return CrossAttentionSpec(spec.block_size)
        case specs.MambaSpec(num_prefill_checkpoint_blocks=0):
            return MambaSpec(spec.block_size, spec.mamba_cache_mode, spec.num_speculative_blocks)
        case specs.MambaSpec():
            raise NotOffered("checkpoints of Mamba states inside a chunk")
    raise NotOffered(type(spec).__name__)


def their_stats(stats: kv_cache_manager.PrefixCacheStats | None) -> PrefixCacheStats | None:
    if stats is None:
        return None
    return PrefixCacheStats(
        reset=stats.reset,
        requests=stats.requests,
        queries=stats.queries,
        hits=stats.hits,
        preempted_requests=stats.preempted_requests,
        preempted_queries=stats.preempted_queries,
        preempted_hits=stats.preempted_hits,
    )


def their_event(event: Any) -> Any:
    match event:
        case AllBlocksCleared():
            return kv_events.AllBlocksCleared()
        case BlockRemoved():
            return kv_events.BlockRemoved(
                block_hashes=_their_digests(event.block_hashes), medium=event.medium, group_idx=event.group_idx
            )
    names = set(kv_events.BlockStored.__struct_fields__) & set(event.__struct_fields__)
    fields = {name: getattr(event, name) for name in names}
    fields["block_hashes"] = _their_digests(event.block_hashes)
    fields["parent_block_hash"] = next(iter(_their_digests(filter(None, [event.parent_block_hash]))), None)
    extra_keys = event.extra_keys or [None] * len(event.block_hashes)
    fields["extra_keys"] = [None if keys is None else tuple(map(_tupled, keys)) for keys in extra_keys]
    return kv_events.BlockStored(**fields)


def _their_digests(digests: Iterable[Any]) -> list[Any]:
    return [maybe_convert_block_hash(digest) for digest in digests]


def _tupled(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
