"""Keeps an engine's tower known by its content, since vLLM tells its connectors of no change of weights.

    LLM.collective_rpc, /collective_rpc, /sleep, /reset_encoder_cache, weight transfer …
        ──> EngineCore ──> the executor's `collective_rpc` ──> the workers

All calls to workers go through the executor, in the process of the scheduler's connector. vLLM's own names for calls
that leave the weights as they are do not count; after a call of any other name or function the tower is unknown, and
the engine shares nothing, until all ranks have read it again: at once, or, where more such calls follow (a weight
update in pieces, sleep), when the next item is looked for. Calls are answered in their order, so that steps which were
scheduled before a change are done before it.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from mmcached.integrations.vllm.tower import of_all_ranks, read_tower

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
_MORE_FOLLOWS = frozenset({"init_weight_transfer_engine", "start_weight_update", "update_weights", "sleep", "discard"})
"""Names of vLLM's worker methods after which the tower is not read at once, because another call completes them."""
_WATCHED = "_mmcached_watches"


class WatchedTower:
    """The tower of one engine, as its workers last read it."""

    def __init__(self) -> None:
        self._executor: Callable[[], Any] = lambda: None
        self._call: Callable[..., Any] | None = None
        self._rows: dict[str, Any] | None = None
        self._is_tried = False
        self._is_away = False

    def rows(self) -> Mapping[str, Any] | None:
        """Return what `read_tower` has found, reading the tower if it is unknown; None if it cannot be read now."""
        if self._rows is None and self._call is not None and not self._is_away and not self._is_tried:
            started = time.perf_counter()
            try:
                self._rows = of_all_ranks(self._call(self._executor(), read_tower))
            except Exception as error:  # whatever a worker raises: the engine goes on, and shares nothing
                self._is_tried = True
                text = "mmcached: the tower cannot be read, so nothing is shared until its weights change: %s: %s"
                _LOG.warning(text, type(error).__name__, error)
            else:
                seconds = time.perf_counter() - started
                _LOG.info("mmcached: the tower's weights were read in %.2f s: %s", seconds, self._rows["tower"])
        return self._rows

    def use(self, executor: Any, call: Callable[..., Any]) -> None:
        """Read through an executor from now on.

        Args:
            call: The `collective_rpc` of the executor's class.
        """
        if self._executor() is not executor:
            self._executor, self._call = weakref.ref(executor), call

    def set_rows(self, rows: Mapping[str, Any]) -> None:
        """Set what `read_tower` would return, in an engine whose workers cannot be called."""
        self._rows = dict(rows)

    def forget(self) -> None:
        """Note that the weights may have changed."""
        self._rows, self._is_tried = None, False

    def called(self, method: Any, named: Mapping[str, Any]) -> None:
        """Note that a call which may change weights has ended.

        Args:
            named: Arguments of the executor's `collective_rpc`, among them `args` and `kwargs` of the method.
        """
        self.forget()
        if method == "sleep":
            self._is_away = True
        elif method == "discard":
            self._is_away = self._is_away or "weights" in (named.get("args") or (["weights"],))[0]
        elif method == "wake_up":
            tags = (named.get("kwargs") or {}).get("tags") or ["weights"]
            self._is_away = self._is_away and "weights" not in tags
        if method not in _MORE_FOLLOWS:
            self.rows()


_TOWERS: defaultdict[str | None, WatchedTower] = defaultdict(WatchedTower)


def tower_of(engine_id: str | None) -> WatchedTower:
    """Return the tower of an engine, by vLLM's name of its connector."""
    return _TOWERS[engine_id]


def watch(executor_class: type[Any]) -> None:
    """Wrap an executor class's `collective_rpc`, and the method that vLLM calls once the scheduler is made, if any.

    There the tower is read before the first step. A second call, or one for a subclass, does nothing.

    Raises:
        AttributeError: The class has no `collective_rpc`: how this vLLM calls its workers is unknown.
    """
    call = executor_class.collective_rpc
    if hasattr(call, _WATCHED):
        return

    @functools.wraps(call)
    def collective_rpc(self: Any, method: Any, *values: Any, **named: Any) -> Any:
        tower = _tower_behind(self, call)
        if tower is None or (isinstance(method, str) and method in HARMLESS):
            return call(self, method, *values, **named)
        tower.forget()
        try:
            return call(self, method, *values, **named)
        finally:
            tower.called(method, named)

    setattr(collective_rpc, _WATCHED, True)
    executor_class.collective_rpc = collective_rpc
    began = getattr(executor_class, "init_ec_output_aggregator", None)
    if began is None:
        return

    @functools.wraps(began)
    def init_ec_output_aggregator(self: Any) -> Any:
        tower = _tower_behind(self, call)
        if tower is not None:
            tower.rows()
        return began(self)

    executor_class.init_ec_output_aggregator = init_ec_output_aggregator


def _tower_behind(executor: Any, call: Callable[..., Any]) -> WatchedTower | None:
    """Return the tower of an executor's engine; None if the engine has no connector."""
    transfer = executor.vllm_config.ec_transfer_config
    if transfer is None:
        return None
    tower = tower_of(transfer.engine_id)
    tower.use(executor, call)
    return tower
