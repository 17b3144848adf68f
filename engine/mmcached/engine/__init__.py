"""Engine process (P1): plans each step, keeps the metadata of all cached content, and runs no model itself.

    server/          the process: its frontend, its workers, the step in flight
    scheduling/      selects the requests of the next step
    encoder/         encoder budgets, and the encoder outputs that the workers hold
    hidden_states/   the rows of prefixes that rank 0 holds
    kv/              KV blocks, their hashes, the longest cached prefix
    results/         tokens, rows and embeddings, until they are sent
    steps/           requests, and the order in which steps begin and commit
    compat/          classes with vLLM's names, for programs without the service

Scheduler, KV cache manager and encoder cache managers do no I/O; `server` puts sockets around them.
"""

from mmcached.cache.hashing.block_keys import LoraKey
from mmcached.engine.compat.receiver_cache import MultiModalReceiverCache, engine_receiver_cache_from_config
from mmcached.engine.encoder.encoder_budget import (
    EncoderBudget,
    compute_encoder_budget,
    make_encoder_cache_manager,
    service_encoder_budget,
)
from mmcached.engine.encoder.encoder_cache_manager import EncoderCacheManager
from mmcached.engine.encoder.shared_encoder_cache_manager import SharedEncoderCacheManager
from mmcached.engine.hidden_states.tensor_prefix_index import TensorPrefixIndex
from mmcached.engine.kv.blocks import KVCacheBlock, KVCacheBlocks
from mmcached.engine.kv.config import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from mmcached.engine.kv.manager import KVCacheManager
from mmcached.engine.kv.stats import PrefixCacheStats
from mmcached.engine.scheduling.scheduler import ScheduledChunk, ScheduledStep, Scheduler
from mmcached.engine.steps.request import Request, RequestStatus, ScheduledItem
from mmcached.wire.messages.kv_events import KVEvent
from mmcached.wire.messages.parts import Feature

__all__ = [
    "EncoderBudget",
    "EncoderCacheManager",
    "Feature",
    "FullAttentionSpec",
    "KVCacheBlock",
    "KVCacheBlocks",
    "KVCacheConfig",
    "KVCacheGroupSpec",
    "KVCacheManager",
    "KVEvent",
    "LoraKey",
    "MultiModalReceiverCache",
    "PrefixCacheStats",
    "Request",
    "RequestStatus",
    "ScheduledChunk",
    "ScheduledItem",
    "ScheduledStep",
    "Scheduler",
    "SharedEncoderCacheManager",
    "SlidingWindowSpec",
    "TensorPrefixIndex",
    "compute_encoder_budget",
    "engine_receiver_cache_from_config",
    "make_encoder_cache_manager",
    "service_encoder_budget",
]
