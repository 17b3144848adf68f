"""Worker process (P1, one per device): encodes items once, caches the outputs, and executes the engine's plans.

    server.py          the process: attaches, executes plans, answers
    payloads.py        reads the item records that a plan names, in place in the store or from message frames
    encoder_cache.py   content key -> encoder output
    stored_outputs.py  saves encoder outputs in the store, and loads them
    encoders/          item record -> named outputs: the reference model's encoder, or a checkpoint's
    devices.py         selects the torch device
    steps/             one plan: read, encode, run, answer
    model/             the reference model, in exact integers
    hidden_states/     hidden states, by content and by KV slot
    compat/            the receiver cache for programs without the service
    integers.py        integer checks of arguments

A plan is complete, so a worker keeps no state of requests. Names are imported lazily: programs that embed
`hidden_states` need neither sockets nor shared memory.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmcached.wire.errors import MissingRows
    from mmcached.worker.compat.receiver import ShmObjectStoreReceiverCache, worker_receiver_cache_from_config
    from mmcached.worker.encoder_cache import EncoderCache
    from mmcached.worker.hidden_states import InputBatch, MissingPrefix, OmniTensorPrefixCache, TensorPrefixStore

__all__ = [
    "EncoderCache",
    "InputBatch",
    "MissingPrefix",
    "MissingRows",
    "OmniTensorPrefixCache",
    "ShmObjectStoreReceiverCache",
    "TensorPrefixStore",
    "worker_receiver_cache_from_config",
]

_MODULES = {
    "EncoderCache": "mmcached.worker.encoder_cache",
    "MissingRows": "mmcached.wire.errors",
    "ShmObjectStoreReceiverCache": "mmcached.worker.compat.receiver",
    "worker_receiver_cache_from_config": "mmcached.worker.compat.receiver",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES.get(name, "mmcached.worker.hidden_states")), name)
