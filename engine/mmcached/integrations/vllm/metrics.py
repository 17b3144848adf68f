"""Shows a connector's figures in vLLM's log and on its /metrics page: `vllm:mmcached_ec_…`.

The scheduler's half adds up its own figures and those in the workers' reports; vLLM takes them once per step. A figure
that is counted by modality is named "queries/image". Names are spelled as vLLM's: `vllm:mm_cache_queries`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter
from vllm.distributed.ec_transfer.ec_connector.metrics import ECConnectorPromMetrics, ECConnectorStats

BY_MODALITY = {
    "queries": "Items looked for in the host's store, because this engine had not got them",
    "hits": "Items found there, and loaded instead of encoded",
    "encodes": "Items that this engine has encoded",
}
FIGURES = {
    "unusable": "Records found there that the model cannot take: of other rows, width or dtype, or not finite",
    "waits": "Steps in which a request waited for an item that another engine was encoding, or to know whether one was",
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
FORMER_QUERIES = "lookups"
"""What `queries` was called; exported for one more release, as the sum of all modalities."""


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
    """One counter per figure, with vLLM's own labels, and the modality where it is counted."""

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
