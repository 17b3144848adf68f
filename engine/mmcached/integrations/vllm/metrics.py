"""Exports the connector's figures to vLLM's log and its /metrics page: `vllm:mmcached_ec_…`.

The scheduler's half adds up its own figures and those in the workers' reports; vLLM takes them once per step. A figure
counted by modality is named "queries/image". Names follow vLLM's spelling: `vllm:mm_cache_queries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

BY_MODALITY = {
    "queries": "Items looked up in the host's store, because they were not in this engine's cache",
    "hits": "Items found there, and loaded instead of encoded",
    "encodes": "Items that this engine has encoded",
}
FIGURES = {
    "exact_hits": "Those of the hits that equal what this engine would have computed, bit for bit",
    "unusable": "Records found there that do not fit the model: other rows, width or dtype, or not finite",
    "waits": "Steps in which a request waited for another engine's encoder, or for the service's answer about it",
    "loads": "Items scheduled to be loaded from the store",
    "load_failures": "Items that could not be loaded, and were encoded",
    "saved": "Encoder outputs that the store has",
    "dropped": "Encoder outputs not saved, because too many bytes waited to be saved",
    "refused": "Encoder outputs that the store has not kept",
    "failed": "Encoder outputs that could not be saved",
    "lookup_us": "Microseconds that steps have spent on look-ups",
    "load_us": "Microseconds that steps have spent on loads",
    "save_us": "Microseconds that steps have spent on saves",
}
FORMER_QUERIES = "lookups"
"""The former name of `queries`; exported for one more release, as the sum of all modalities."""


class MmcachedStats(ECConnectorStats):
    """Figures of some steps, by name; see `BY_MODALITY` and `FIGURES`."""

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
    """One counter per figure, with vLLM's own labels, and a modality label where it is counted by modality."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: Mapping[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)

        def counter(name: str, text: str, *own_labels: str) -> Any:
            labels = [*labelnames, *own_labels]
            return metric_types[Counter](name=f"vllm:mmcached_ec_{name}", documentation=f"{text}.", labelnames=labels)

        self._counters = {name: counter(name, text) for name, text in FIGURES.items()}
        self._counters |= {name: counter(name, text, "modality") for name, text in BY_MODALITY.items()}
        self._former_queries = counter(FORMER_QUERIES, "Deprecated: the sum of vllm:mmcached_ec_queries")
        self._labels = per_engine_labelvalues

    def observe(self, transfer_stats_data: Mapping[str, Any], engine_idx: int = 0) -> None:
        labels = self._labels[engine_idx]
        for figure, more in transfer_stats_data.items():
            if not more:
                continue
            name, *modality = figure.split("/", 1)
            self._counters[name].labels(*labels, *modality).inc(more)
            if name == "queries":
                self._former_queries.labels(*labels).inc(more)
