"""The tensor prefix store beside caches that are addressed by KV slot: one decode step, and prefixes that are read.

    shape      what is measured: rows, requests, room
    sides      the store, this repository's OmniTensorPrefixCache, vllm-omni's: each plays the same steps
    omni       vllm-omni's class, without its package and its dependencies
    promises   the bounds

All sides have the same rows and as much room. They are measured in the state of a long-running engine: memory has been
touched, and the store is full, so that every new block evicts one. What an engine hands to each side (chunks, slots,
block tables) is made beforehand and not timed.
"""
