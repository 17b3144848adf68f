"""Lets all vLLM engines of a host share the outputs of their vision and audio towers: one encodes, the others load.

    vllm serve MODEL --ec-transfer-config '{"ec_connector": "MmcachedECConnector", "ec_role": "ec_both",
      "ec_connector_module_path": "mmcached.integrations.vllm"}'

    versions          refuses a vLLM that is too old
    connector         the class that vLLM makes in its scheduler and in each worker: passes calls on, lets no error out
    settings          what a user may set
    weights           notices changes of weights
    keys              what an output depends on, and which items may be shared
    contact           keeps the scheduler's client in contact with the service, beside the steps
    messages          what goes from the scheduler to the workers with each step, and back
    scheduler_side    which items are loaded, encoded and saved
    leases, claims    what the scheduler holds in the store: records to be read, and keys to be encoded
    worker_side       loads and saves
    records           encoder outputs as records of the store, and which of them a model can take
    ranks             agreement of an engine's ranks
    metrics           figures in vLLM's own log and /metrics

Only `connector` and `metrics` import vLLM.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmcached.integrations.vllm.connector import MmcachedECConnector

__all__ = ["MmcachedECConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector when vLLM asks for it: the other modules work without vLLM."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mmcached.integrations.vllm.versions import check_vllm

    check_vllm()
    return getattr(import_module(f"{__name__}.connector"), name)
