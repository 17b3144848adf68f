"""Keeps hidden states by KV slot: the tensor prefix cache of vllm-omni 0.22, its constructor and its ten methods.

    cache           the public methods, in the order in which a step calls them
    engine_batch    what an engine's batch says: packed rows, positions, block tables
    slots           checks of slots, and positions -> slots
    output_keys     which outputs are rows: declared, or discovered
    step_writer     a step's rows -> their slots                  step_outputs: those of the step at hand
    merging         rows of a step behind the cached prefix, or what is missing of it
    staging         which rows of deferred keys may be staged      staged_rows
    passthrough     outputs that are no keys

For engines that know slots, and nothing of content: rows live and die with KV slots. The service itself uses
`TensorPrefixStore`. Deliberate differences from the class of vllm-omni: `docs/from-vllm-omni.md`, and

* a hit is delivered its prefix of a key that its step lacks;
* a key is also recognised unpadded on a padded step; only `(tokens, width)` tensors become keys;
* a 0-d tensor passes through; None and empty dicts within a list stay where they are;
* whole numbers of computed tokens may be floats; all other numbers are integers.
"""

from mmcached.compat.omni_tensor_prefix_cache.cache import OmniTensorPrefixCache, PrefixCacheStats
from mmcached.compat.omni_tensor_prefix_cache.engine_batch import InputBatch
from mmcached.compat.omni_tensor_prefix_cache.merging import MissingPrefix, MissingRun

__all__ = ["InputBatch", "MissingPrefix", "MissingRun", "OmniTensorPrefixCache", "PrefixCacheStats"]
