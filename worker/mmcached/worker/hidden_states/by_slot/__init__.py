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
`by_content`. Deliberate differences from the class of vllm-omni:

* unwritten rows are `MissingRows`, for their request only, and never zeros;
* a hit may end within a block: all its rows are delivered, none is dropped;
* a write replaces the slots' tenant: a key that the step's outputs lack, or that is deferred, becomes missing there;
* an output is a key when it is declared, or has had two different lengths, each its step's; by its first one only on
  demand (`discover="first"`);
* slots, widths, dtypes and lengths are checked, nothing is broadcast, truncated or wrapped around, no slot is named
  twice; a key that does not fit costs its own rows, and no others;
* `num_computed_tokens_cpu` is the number before the step, for staging as well as for merging, and is checked;
* staged rows belong to their slots from then on: hits on them are served, also of a request that runs; what was staged
  later wins, what a later step has replaced is not written; positions beyond the block table are refused;
* every result is a copy, one for each request, and never a view of the step's buffers or of the cache;
* a hit is delivered its prefix of a key that its step lacks;
* a key is also recognised unpadded on a padded step; only `(tokens, width)` tensors become keys; a 0-d tensor passes
  through;
* a step's outputs leave their device in one copy, which only merging waits for;
* `mm_cache_keys` and `mm_outputs_cache` are copies; None and empty dicts within a list stay where they are;
* what does not fit is `InvalidRequest`, also a staged copy that does not: a `ValueError`, and no `RuntimeError`;
* whole numbers of computed tokens may be floats; all other numbers are integers.
"""
