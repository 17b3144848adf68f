"""Published classes of vLLM and vllm-omni, with their names and methods, for programs without the service.

    multimodal/                vLLM's caches of processed items: senders, receivers, items, sizes, LRU cache
    kv_cache_manager           vLLM's `KVCacheManager`, for engines that have a scheduler of their own
    omni_tensor_prefix_cache/  vllm-omni's `OmniTensorPrefixCache`: hidden states by KV slot

`mmcached.cache`, `mmcached.engine`, `mmcached.frontend` and `mmcached.worker` export the classes under their published
names, and import them when they are used. No other module of the product imports this package.
"""
