"""The worker process (P1, one per device) encodes items once, keeps the outputs, and executes the engine's plans.

    server.py          the process: attaches, executes plans, answers
    attachment.py      its share of the engine's row of the ring
    payloads.py        the record of an item that a plan names, in place in the ring or from message frames
    encoder_cache.py   content key -> encoder output
    steps/             one plan: read, encode, run, answer
    model/             the reference model, in exact integers
    prefix_store/      hidden states by content
    omni/              hidden states by KV slot
    compat/            the receiver cache for programs without the service
    integers.py        checks of numbers that callers hand in

Imports torch. Knows nothing of scheduling: a plan is complete, and a worker remembers no requests.
"""

from mmcached.wire.errors import MissingRows
from mmcached.worker.compat.receiver import ShmObjectStoreReceiverCache, worker_receiver_cache_from_config
from mmcached.worker.encoder_cache import EncoderCache
from mmcached.worker.omni import InputBatch, MissingPrefix, OmniTensorPrefixCache
from mmcached.worker.prefix_store import TensorPrefixStore

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
