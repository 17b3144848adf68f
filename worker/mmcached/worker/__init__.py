"""P1 on a device: encodes items once, keeps what it made, and runs the reference model as its engine plans.

    server            the process: attaches, executes plans, answers
    attachment        its share of the engine's row
    runner            one plan: read items, encode, run chunks, build the output        step_result
    payloads          an item of a plan -> its record, in place in the ring or from message frames
    read_ledger       which leases are still read
    prefix_rows       what a plan says of rows, done with the store
    encoder_cache     content key -> encoder output
    prefix_store      per-token outputs by content
    omni              the same by KV slot, for engines that know nothing else
    kv_pool           keys and values by KV slot
    model             the reference model                   encoder, decoder, batch, arithmetic, bounds
    receiver          the receiver cache for programs without the service

Imports torch. Knows nothing of scheduling: a plan is complete, and a worker remembers no requests.
"""

from mmcached.wire.errors import MissingRows
from mmcached.worker.encoder_cache import EncoderCache
from mmcached.worker.omni import InputBatch, MissingPrefix, OmniTensorPrefixCache
from mmcached.worker.prefix_store import TensorPrefixStore
from mmcached.worker.receiver import ShmObjectStoreReceiverCache, worker_receiver_cache_from_config

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
