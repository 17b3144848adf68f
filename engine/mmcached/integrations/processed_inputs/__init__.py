"""Shares processed items of render servers and engines once per host, with counts and pixels in separate records.

    items        finds or processes an item, or only its counts; for any program
    vllm_items   converts vLLM's items and prompt updates to such items, and back
    vllm_cache   a processor cache of vLLM on top of that
    vllm_handles  sends pixels to vLLM's engine process as handles, and opens them there
    vllm_named   finds the content of items that clients have named
    vllm_films   shares decoded films between vLLM's API processes
    vllm_plugin  installs the cache in vLLM's servers
    vllm_names   the fingerprint of vLLM's processor

A router needs the counts of a request's images, a few hundred bytes each, and reads no pixels; an encoder needs both.
Importing this imports neither vLLM nor torch.
"""

from mmcached.integrations.processed_inputs.items import ProcessedItem, ProcessedItems, name_of

__all__ = ["ProcessedItem", "ProcessedItems", "name_of"]
