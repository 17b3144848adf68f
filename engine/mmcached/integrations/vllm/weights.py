"""Counts changes of an engine's weights, since vLLM tells its connectors of none.

    LLM.collective_rpc, /collective_rpc, /sleep, /reset_encoder_cache, weight transfer …
        ──> EngineCore ──> the executor's `collective_rpc` ──> the workers

All calls to workers go through the executor, in the process of the scheduler's connector. vLLM's own names for calls
that leave the weights as they are do not count; a call of any other name or function counts as a change.
"""

from __future__ import annotations

import functools
import logging
from collections import Counter
from typing import Any

_LOG = logging.getLogger("vllm.mmcached")
HARMLESS = frozenset(
    {
        *("execute_model", "sample_tokens", "take_draft_token_ids", "execute_dummy_batch", "check_health", "shutdown"),
        *("determine_available_memory", "get_kv_cache_spec", "get_supported_kv_cache_layouts", "set_kv_cache_layout"),
        *("initialize_from_config", "initialize_cache", "compile_or_warm_up_model", "update_max_model_len"),
        *("get_kv_connector_handshake_metadata", "get_supported_tasks", "supports_draft_weight_updates"),
        *("add_lora", "remove_lora", "pin_lora", "list_loras", "reset_mm_cache", "profile", "save_sharded_state"),
        *("synchronize_device", "compute_weight_checksums"),
    }
)
"""Names of vLLM's worker methods that change no weights of a tower. An engine with tower LoRA never shares."""
_CHANGES: Counter[str | None] = Counter()
_WATCHED = "_mmcached_watches"


def note_change(engine_id: str | None, cause: str) -> None:
    """Count a possible change of an engine's weights.

    Args:
        engine_id: vLLM's name of the engine's connector.
        cause: Cause for the log.
    """
    _CHANGES[engine_id] += 1
    if _CHANGES[engine_id] == 1:
        text = "mmcached: %s may have changed the weights: this engine no longer shares encoder outputs with others"
        _LOG.warning(text, cause)


def num_changes(engine_id: str | None) -> int:
    """Return how often an engine's weights may have changed since its scheduler's connector was made."""
    return _CHANGES[engine_id]


def watch(executor_class: type[Any]) -> None:
    """Wrap an executor class's `collective_rpc` to count changes; a second call, or one for a subclass, does nothing.

    Raises:
        AttributeError: The class has no `collective_rpc`: how this vLLM calls its workers is unknown.
    """
    call = executor_class.collective_rpc
    if hasattr(call, _WATCHED):
        return

    @functools.wraps(call)
    def collective_rpc(self: Any, method: Any, *values: Any, **named: Any) -> Any:
        transfer = self.vllm_config.ec_transfer_config
        if transfer is not None and not (isinstance(method, str) and method in HARMLESS):
            note_change(transfer.engine_id, f"collective_rpc({getattr(method, '__name__', method)!r})")
        return call(self, method, *values, **named)

    setattr(collective_rpc, _WATCHED, True)
    executor_class.collective_rpc = collective_rpc
