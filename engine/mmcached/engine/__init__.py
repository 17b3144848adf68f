"""P1, the process that books: which requests run, with which blocks and encoder outputs, and what is not computed anew.

The books (scheduler, KV cache manager, encoder cache managers) are sans I/O; the server puts sockets around them.
"""

from mmcached.engine.encoder_budget import (
    EncoderBudget,
    ServiceModalities,
    compute_encoder_budget,
    make_encoder_cache_manager,
    service_encoder_budget,
)
from mmcached.engine.encoder_bytes import EmbeddingRow, EncoderBytes
from mmcached.engine.encoder_cache_book import EncoderCacheBook
from mmcached.engine.encoder_cache_manager import EncoderCacheManager
from mmcached.engine.kv.block_keys import LoraKey
from mmcached.engine.kv.blocks import KVCacheBlock, KVCacheBlocks
from mmcached.engine.kv.config import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from mmcached.engine.kv.manager import KVCacheManager
from mmcached.engine.kv.stats import PrefixCacheStats
from mmcached.engine.receiver_cache import MultiModalReceiverCache, engine_receiver_cache_from_config
from mmcached.engine.request import Request, RequestStatus
from mmcached.engine.scheduler import ScheduledChunk, ScheduledItem, ScheduledStep, Scheduler
from mmcached.engine.shared_encoder_cache_manager import SharedEncoderCacheManager
from mmcached.engine.tensor_prefix_index import TensorPrefixIndex
from mmcached.wire.messages.kv_events import KVEvent
from mmcached.wire.messages.parts import Feature

__all__ = [
    "EmbeddingRow",
    "EncoderBudget",
    "EncoderBytes",
    "EncoderCacheBook",
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
    "ServiceModalities",
    "SharedEncoderCacheManager",
    "SlidingWindowSpec",
    "TensorPrefixIndex",
    "compute_encoder_budget",
    "engine_receiver_cache_from_config",
    "make_encoder_cache_manager",
    "service_encoder_budget",
]
