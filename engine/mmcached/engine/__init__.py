"""Engine process (P1): plans each step, keeps the metadata of all cached content, and runs no model itself.

    server/          the process: its frontend, its workers, the step in flight
    scheduling/      selects the requests of the next step
    encoder/         encoder budgets, and the encoder outputs that the workers hold
    hidden_states/   the rows of prefixes that rank 0 holds
    kv/              KV blocks, their hashes, the longest cached prefix
    results/         tokens, rows and embeddings, until they are sent
    steps/           requests, and the order in which steps begin and commit

Scheduler, KV cache manager and encoder cache managers do no I/O; `server` puts sockets around them. `KVCacheManager`,
`MultiModalReceiverCache` and `engine_receiver_cache_from_config` lie in `mmcached.compat` and are imported lazily.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from mmcached.cache.hashing.block_keys import LoraKey
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
from mmcached.engine.kv.config import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from mmcached.engine.scheduling.scheduler import Scheduler
from mmcached.engine.scheduling.step import ScheduledChunk, ScheduledStep
from mmcached.engine.steps.request import Request, RequestStatus, ScheduledItem
from mmcached.wire.messages.kv_events import KVEvent
from mmcached.wire.messages.parts import Feature

if TYPE_CHECKING:
    from mmcached.compat.kv_cache_manager import KVCacheManager
    from mmcached.compat.multimodal.receiver_cache import MultiModalReceiverCache, engine_receiver_cache_from_config

__all__ = [
    "ChunkedLocalAttentionSpec",
    "CrossAttentionSpec",
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
    "MambaSpec",
    "MultiModalReceiverCache",
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

_MODULES = {
    "KVCacheManager": "mmcached.compat.kv_cache_manager",
    "MultiModalReceiverCache": "mmcached.compat.multimodal.receiver_cache",
    "engine_receiver_cache_from_config": "mmcached.compat.multimodal.receiver_cache",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
