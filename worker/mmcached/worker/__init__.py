"""P1 on a device: encodes items once, keeps what it made, and runs the reference model as its engine plans.

    server            the process: attaches, executes plans, answers
    attachment        its share of the engine's row
    runner            one plan: read items, encode, run chunks, build the output        step_result
    payloads          an item of a plan -> its record, in place in the ring or from message frames
    read_ledger       which leases are still read
    encoder_cache     content key -> encoder output
    prefix_cache      per-token outputs by KV slot          row_store, deferred_rows, input_batch, passthrough
    prefix_store      the same by content, for servers of one's own; the runner does not use it yet
    kv_pool           keys and values by KV slot
    model             the reference model                   encoder, decoder, batch, arithmetic, bounds
    receiver          the receiver cache for programs without the service

Imports torch. Knows nothing of scheduling: a plan is complete, and a worker remembers no requests.
"""

from mmcached.wire.errors import MissingRows
from mmcached.worker.encoder_cache import EncoderCache
from mmcached.worker.input_batch import InputBatch
from mmcached.worker.prefix_cache import OmniTensorPrefixCache
from mmcached.worker.prefix_store import TensorPrefixStore
from mmcached.worker.receiver import ShmObjectStoreReceiverCache, worker_receiver_cache_from_config

__all__ = [
    "EncoderCache",
    "InputBatch",
    "MissingRows",
    "OmniTensorPrefixCache",
    "ShmObjectStoreReceiverCache",
    "TensorPrefixStore",
    "worker_receiver_cache_from_config",
]
