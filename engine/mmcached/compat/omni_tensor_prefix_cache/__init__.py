"""Hidden states by KV slot: the tensor prefix cache of vllm-omni 0.22, with its constructor and its ten methods.

    cache           the public methods, in the order in which a step calls them
    engine_batch    reads an engine's batch: packed rows, positions, block tables
    slots           checks slots, and converts positions to slots
    output_keys     decides which outputs are rows: declared, or discovered
    step_writer     writes a step's rows to their slots           step_outputs: outputs written by the current step
    merging         joins cached prefixes with a step's rows, or reports missing rows
    staging         checks rows of deferred keys before staging   staged_rows: keeps them
    passthrough     splits outputs that are not keys

For engines that work with slots and not with content: rows have the lifetime of KV slots. The service itself uses
`TensorPrefixStore`. Deliberate differences from the class of vllm-omni: `docs/from-vllm-omni.md`, and

* a hit receives its prefix of a key that its step lacks;
* a key is also recognised unpadded on a padded step; only `(tokens, width)` tensors become keys;
* a 0-d tensor passes through; None and empty dicts within a list stay where they are;
* integral numbers of computed tokens may be floats; all other numbers are integers.
"""

from mmcached.compat.omni_tensor_prefix_cache.cache import OmniTensorPrefixCache
from mmcached.compat.omni_tensor_prefix_cache.engine_batch import InputBatch
from mmcached.compat.omni_tensor_prefix_cache.merging import MissingPrefix, MissingRun
from mmcached.compat.omni_tensor_prefix_cache.stats import TensorPrefixCacheStats

__all__ = ["InputBatch", "MissingPrefix", "MissingRun", "OmniTensorPrefixCache", "TensorPrefixCacheStats"]
