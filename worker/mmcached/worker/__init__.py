"""Worker process (P1, one per device): encodes items once, caches the outputs, and executes the engine's plans.

    server.py          the process: attaches, executes plans, answers
    payloads.py        reads the item records that a plan names, in place in the store or from message frames
    encoder_cache.py   content key -> encoder output
    stored_outputs.py  saves encoder outputs in the store, and loads them
    encoders/          item record -> named outputs: the reference model's encoder, or a checkpoint's
    devices.py         selects the torch device
    steps/             one plan: read, encode, run, answer
    model/             the reference model, in exact integers
    language/          the language model of a checkpoint
    hidden_states/     hidden states, by content
    integers.py        integer checks of arguments

A plan is complete, so a worker keeps no state of requests. Names are imported lazily: programs that embed
`hidden_states` need neither sockets nor shared memory. Classes of vLLM and vllm-omni lie in `mmcached.compat`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmcached.compat.multimodal.shm_receiver_cache import (
        ShmObjectStoreReceiverCache,
        worker_receiver_cache_from_config,
    )
    from mmcached.compat.omni_tensor_prefix_cache.cache import OmniTensorPrefixCache
    from mmcached.wire.errors import MissingRows
    from mmcached.worker.encoder_cache import EncoderCache
    from mmcached.worker.hidden_states.by_content.store import TensorPrefixStore

__all__ = [
    "EncoderCache",
    "MissingRows",
    "OmniTensorPrefixCache",
    "ShmObjectStoreReceiverCache",
    "TensorPrefixStore",
    "worker_receiver_cache_from_config",
]

_MODULES = {
    "EncoderCache": "mmcached.worker.encoder_cache",
    "MissingRows": "mmcached.wire.errors",
    "OmniTensorPrefixCache": "mmcached.compat.omni_tensor_prefix_cache.cache",
    "ShmObjectStoreReceiverCache": "mmcached.compat.multimodal.shm_receiver_cache",
    "TensorPrefixStore": "mmcached.worker.hidden_states.by_content.store",
    "worker_receiver_cache_from_config": "mmcached.compat.multimodal.shm_receiver_cache",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
