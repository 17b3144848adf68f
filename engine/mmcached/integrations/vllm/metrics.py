"""Shows a connector's figures in vLLM's log and on its /metrics page: `vllm:mmcached_ec_…`.

The scheduler's half adds up its own figures and those in the workers' reports; vLLM takes them once per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

FIGURES = {
    "lookups": "Items looked for in the host's store, because this engine had not got them",
    "hits": "Items found there, and loaded instead of encoded",
    "unusable": "Records found there that the model cannot take: of other rows, width or dtype, or not finite",
    "waits": "Steps in which a request waited for an item that another engine was encoding, or to know whether one was",
    "encodes": "Items that this engine has encoded",
    "loads": "Items that were to be loaded from the store",
    "load_failures": "Items that could not be loaded, and were encoded",
    "saved": "Encoder outputs that the store has",
    "dropped": "Encoder outputs that were not saved, because too much waited",
    "refused": "Encoder outputs that the store has not kept",
    "failed": "Encoder outputs that could not be saved",
    "lookup_us": "Microseconds that steps have spent on look-ups",
    "load_us": "Microseconds that steps have spent on loads",
    "save_us": "Microseconds that steps have spent on saves",
}


class MmcachedStats(ECConnectorStats):
    """Figures of some steps, by name; see `FIGURES`."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: ECConnectorStats) -> ECConnectorStats:
        for name, more in other.data.items():
            self.data[name] = self.data.get(name, 0) + more
        return self

    def reduce(self) -> dict[str, int | float]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not any(self.data.values())


class MmcachedPromMetrics(ECConnectorPromMetrics):
    """One counter per figure, with vLLM's own labels."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: Mapping[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter = metric_types[Counter]
        self._counters = {
            name: counter(name=f"vllm:mmcached_ec_{name}", documentation=f"{text}.", labelnames=labelnames)
            for name, text in FIGURES.items()
        }
        self._labels = per_engine_labelvalues

    def observe(self, transfer_stats_data: Mapping[str, Any], engine_idx: int = 0) -> None:
        for name, counter in self._counters.items():
            if more := transfer_stats_data.get(name, 0):
                counter.labels(*self._labels[engine_idx]).inc(more)
