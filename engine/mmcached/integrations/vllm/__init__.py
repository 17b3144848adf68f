"""Share vision and audio encoder outputs among the vLLM engines of a host: one engine encodes, the others load.

    vllm serve MODEL --ec-transfer-config '{"ec_connector": "MmcachedECConnector", "ec_role": "ec_both",
      "ec_connector_module_path": "mmcached.integrations.vllm"}'

    versions          check of vLLM's version
    connector         the class that vLLM makes in its scheduler and in each worker; catches errors of the store
    settings          user settings
    weights           detection of weight changes
    keys              the fingerprint of an encoder, and which items may be shared
    named_hashes      a mark on vLLM's hashes of names, so that they are not shared as hashes of content
    contact           the scheduler's connection to the service, in a thread beside the steps
    messages          the plan and the report that travel between scheduler and workers with each step
    scheduler_side    which items are loaded, encoded and saved
    leases, claims    the scheduler's read leases, and its claims on keys to be encoded
    worker_side       loads and saves
    records           encoder outputs as records of the store, and their validation
    metrics           counters in vLLM's log and /metrics

Only `connector` and `metrics` import vLLM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmcached.integrations.vllm.connector import MmcachedECConnector

__all__ = ["MmcachedECConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector on first use: the other modules work without vLLM."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mmcached.integrations.vllm.versions import check_vllm

    check_vllm()
    return getattr(import_module(f"{__name__}.connector"), name)
