"""An engine of another house embeds the cache, and has neither our sockets nor our shared memory with it."""

from __future__ import annotations

from tests.worker.hidden_states.test_imports import HEAVY, modules_of

OURS = ("mmcached.compat", "mmcached.wire", "mmcached.worker")


def test_the_cache_by_slot_needs_torch_numpy_and_msgspec_only() -> None:
    modules = modules_of("from mmcached.worker import OmniTensorPrefixCache")
    assert {name.split(".")[0] for name in modules} & HEAVY == set()
    assert "mmcached.compat.omni_tensor_prefix_cache.cache" in modules
    assert [name for name in modules if name.startswith("mmcached.") and not name.startswith(OURS)] == []
    assert [name for name in modules if name.startswith("mmcached.compat.multimodal")] == []
