"""Keeps what processors make of images for render servers and engines, once per host: counts and pixels apart.

    items        what any program asks: find or process an item, or only its counts
    vllm_items   vLLM's items and prompt updates as such items, and back
    vllm_cache   a processor cache of vLLM on top of that
    vllm_plugin  puts it into vLLM's servers
    vllm_names   names what vLLM's processor makes of an item depends on

Who routes a request needs the counts of its images, a few hundred bytes each, and reads no pixels; who encodes needs
both. Importing this imports neither vLLM nor torch.
"""

from mmcached.integrations.processed_inputs.items import ProcessedItem, ProcessedItems, name_of

__all__ = ["ProcessedItem", "ProcessedItems", "name_of"]
