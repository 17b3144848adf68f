"""The metrics page: what the roles have written into the stats page, under the names that Prometheus expects.

Nothing is counted here. `FIGURES` says for each field of the records in `mmcached.wire.stats` which metric it is; a
test holds the table complete. Counters continue over a role's death (see `mmcached.shm.stats.page`); after a restart of
the whole service they start at 0, as Prometheus expects.

Every metric of a role has the label `role` (`frontend`, `engine 0`, `worker 0.1`), so that each figure says who counted
it; sum over it. Queries and hits are always both there: a ratio is for the dashboard.

======================================= ==================== ==================================================
metric                                  further labels       meaning
======================================= ==================== ==================================================
mmcached_build_info                     version, python,     1; how control words are stored on this machine
                                        word_store
mmcached_process_up                                          1 if the process runs
mmcached_process_restarts_total                              how often the supervisor has started it again
mmcached_heartbeat_age_seconds                               since its loop last turned
mmcached_draining                       (no role)            1 while the service drains
mmcached_cache_queries_total            cache                asked: items, tokens (kv_prefix) or rows (tensor_prefix)
mmcached_cache_hits_total               cache                of these, found
mmcached_cache_insertions_total         cache                items put
mmcached_cache_evictions_total          cache                items evicted for room
mmcached_cache_rejections_total         cache                items that found no room now: too much is leased
mmcached_cache_bytes                    cache                bytes in use
mmcached_cache_capacity_bytes           cache                limit of bytes in use
mmcached_cache_entries                  cache                items held
mmcached_cache_pinned_bytes             cache                bytes in use that may not be evicted now
mmcached_kv_blocks                      state                KV blocks used, cached, total
mmcached_encoder_embeds                 state                encoder cache embeddings used, total
mmcached_encoder_budget_bytes           state                the same in bytes: used, total, and step: of one step
mmcached_desync_total                   side                 items lost from a mirrored cache: must stay 0
mmcached_ring_capacity_bytes                                 bytes of the ring; 0 = there is none
mmcached_ring_used_bytes                                     bytes taken by chunks
mmcached_ring_pinned_bytes                                   bytes taken by leased chunks
mmcached_ring_populated_bytes                                bytes whose pages are mapped; rises after the start
mmcached_ring_chunks                                         chunks held
mmcached_ring_fenced_rows                                    engines that gave back more leases than they had
mmcached_ring_written_bytes_total                            payload bytes put
mmcached_ring_grants_total                                   leases granted
mmcached_ring_lost_leases_total                              of these, lost on the way and taken back
mmcached_ring_lease_refusals_total                           leases that an engine could not take; sent inline
mmcached_store_capacity_bytes                                bytes of the store's ring; 0 = there is no store
mmcached_store_used_bytes                                    bytes taken by records
mmcached_store_pinned_bytes                                  bytes taken by leased records
mmcached_store_populated_bytes                               bytes whose pages are mapped; rises after the start
mmcached_store_records                                       records held
mmcached_store_leases                                        leases that clients hold
mmcached_store_clients                                       clients that have a row, and so read in place
mmcached_store_fenced_rows                                   clients that gave back more leases than they had
mmcached_store_written_bytes_total                           payload bytes put
mmcached_store_grants_total                                  leases granted
mmcached_store_lost_leases_total                             of these, lost on the way and taken back
mmcached_store_inline_total                                  records sent as message frames, not through the ring
mmcached_store_withheld_total                                records not sent: the answer had become too large
mmcached_store_puts_total               outcome              puts by outcome: kept (or there already), refused
mmcached_store_quota_evictions_total                         records that went for their tenant's quota
mmcached_store_claims_total                                  clients told to compute what was not there
mmcached_store_waits_total                                   requests that waited for another client's computation
mmcached_store_computing                                     claims that are open
mmcached_store_waiting                                       requests that wait now
mmcached_store_epochs_total                                  times that all was made unreachable: weights changed
mmcached_leases                         side                 granted and not back (writer), held (reader)
mmcached_requests_total                 outcome              requests answered, by outcome done or failed
mmcached_requests_open                                       accepted and not answered
mmcached_clients                                             clients that live
mmcached_connections                                         client connections that are open
mmcached_clients_refused_total                               connections that were too many
mmcached_clients_disconnected_total                          clients that did not read, or did not end a message
mmcached_faults_total                                        handlers that raised what nobody expected: bugs
mmcached_protocol_errors_total                               frames that did not validate
mmcached_resends_total                                       requests sent again after a typed miss
mmcached_items_processed_total                               items preprocessed
mmcached_items_waiting                                       items that wait for a thread to preprocess them
mmcached_items_busy_refusals_total                           requests refused because too many items waited
mmcached_items_inline_total                                  items sent as message frames, not through the ring
mmcached_ring_fallbacks_total                                of these, because the ring had no room
mmcached_engine_requests                state                requests in the scheduler: running, waiting
mmcached_engine_requests_finished_total                      requests that left the scheduler
mmcached_engine_steps_total                                  steps planned
mmcached_engine_steps_failed_total                           steps that could not be computed
mmcached_engine_deaths_in_steps_total                        workers that died while they computed a step
mmcached_engine_poisonous_requests_total                     requests that failed because they had killed workers
mmcached_preemptions_total                                   requests that had to start over for want of blocks
mmcached_worker_items_encoded_total                          items encoded
mmcached_worker_embeds_encoded_total                         embeddings computed
mmcached_worker_tokens_computed_total                        token positions computed
mmcached_worker_items_received_total    path                 items viewed in the ring, or copied from messages
mmcached_worker_received_bytes_total    path                 bytes viewed in the ring, or copied from messages
mmcached_saved_ipc_bytes_total                               bytes read in place that were not sent to the worker
mmcached_saved_work_total               work                 not done again: items, tokens (prefill), rows
mmcached_supervisor_restarts_total                           restarts of all roles
======================================= ==================== ==================================================
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from mmcached.cli.watch.service_status import Snapshots, SupervisorView, role_statuses
from mmcached.shm.segment.words import WORD_STORE_NAME
from mmcached.shm.stats.layout import FIELDS

PREFIX = "mmcached_"
Family = CounterMetricFamily | GaugeMetricFamily


@dataclass(frozen=True, slots=True)
class Figure:
    """One field of a record, `source`, as one sample. A counter's metric goes without the `_total` of its name.

    Attributes:
        needs: another field that is 0 where this one says nothing; then it is left out.
    """

    source: str
    metric: str
    labels: dict[str, str] = field(default_factory=dict)
    needs: str | None = None


def _cache(name: str, *figures: tuple[str, str], needs: str | None = None) -> list[Figure]:
    return [Figure(source, f"cache_{metric}", {"cache": name}, needs) for source, metric in figures]


def _ring_cache(name: str, ring: str) -> list[Figure]:
    """What the writer of a ring, a field of its record, says about the cache that lies in it."""
    figures = {
        "puts": "insertions",
        "evictions": "evictions",
        "refusals": "rejections",
        "used_bytes": "bytes",
        "data_bytes": "capacity_bytes",
        "chunks": "entries",
        "pinned_bytes": "pinned_bytes",
    }
    return _cache(
        name, *((f"{ring}.{source}", metric) for source, metric in figures.items()), needs=f"{ring}.data_bytes"
    )


FIGURES: dict[str, list[Figure]] = {
    "supervisor": [
        Figure("restarts", "supervisor_restarts"),
    ],
    "frontend": [
        Figure("requests_open", "requests_open"),
        Figure("requests_done", "requests", {"outcome": "done"}),
        Figure("requests_failed", "requests", {"outcome": "failed"}),
        Figure("protocol_errors", "protocol_errors"),
        Figure("resends", "resends"),
        Figure("clients", "clients"),
        Figure("connections", "connections"),
        Figure("clients_refused", "clients_refused"),
        Figure("clients_disconnected", "clients_disconnected"),
        Figure("faults", "faults"),
        Figure("desyncs", "desync", {"side": "sender"}),
        *_cache("processor", ("processor.queries", "queries"), ("processor.hits", "hits")),
        Figure("processor.hits", "saved_work", {"work": "preprocessing"}),
        Figure("processor.items_processed", "items_processed"),
        Figure("processor.items_waiting", "items_waiting"),
        Figure("processor.busy_refusals", "items_busy_refusals"),
        Figure("processor.inline_items", "items_inline"),
        Figure("processor.inline_fallbacks", "ring_fallbacks"),
        # With a ring the processor cache is what lies in the ring.
        *_ring_cache("processor", "ring"),
        Figure("ring.data_bytes", "ring_capacity_bytes"),
        Figure("ring.used_bytes", "ring_used_bytes"),
        Figure("ring.pinned_bytes", "ring_pinned_bytes"),
        Figure("ring.populated_bytes", "ring_populated_bytes"),
        Figure("ring.chunks", "ring_chunks"),
        Figure("ring.fenced_rows", "ring_fenced_rows"),
        Figure("ring.put_bytes", "ring_written_bytes"),
        Figure("ring.grants", "ring_grants"),
        Figure("ring.lost_leases", "ring_lost_leases"),
        Figure("lease_refusals", "ring_lease_refusals"),
        Figure("ring.leases", "leases", {"side": "writer"}),
        *_cache("store", ("store.queries", "queries"), ("store.hits", "hits")),
        *_ring_cache("store", "store.ring"),
        Figure("store.ring.data_bytes", "store_capacity_bytes"),
        Figure("store.ring.used_bytes", "store_used_bytes"),
        Figure("store.ring.pinned_bytes", "store_pinned_bytes"),
        Figure("store.ring.populated_bytes", "store_populated_bytes"),
        Figure("store.ring.chunks", "store_records"),
        Figure("store.ring.leases", "store_leases"),
        Figure("store.rows", "store_clients"),
        Figure("store.ring.fenced_rows", "store_fenced_rows"),
        Figure("store.ring.put_bytes", "store_written_bytes"),
        Figure("store.ring.grants", "store_grants"),
        Figure("store.ring.lost_leases", "store_lost_leases"),
        Figure("store.inline_records", "store_inline"),
        Figure("store.withheld_records", "store_withheld"),
        Figure("store.puts", "store_puts", {"outcome": "kept"}),
        Figure("store.refusals", "store_puts", {"outcome": "refused"}),
        Figure("store.quota_evictions", "store_quota_evictions"),
        Figure("store.claims", "store_claims"),
        Figure("store.waits", "store_waits"),
        Figure("store.computing", "store_computing"),
        Figure("store.waiting", "store_waiting"),
        Figure("store.new_epochs", "store_epochs"),
    ],
    "engine": [
        Figure("steps", "engine_steps"),
        Figure("steps_failed", "engine_steps_failed"),
        Figure("deaths_in_steps", "engine_deaths_in_steps"),
        Figure("poisonous_requests", "engine_poisonous_requests"),
        Figure("faults", "faults"),
        Figure("requests_running", "engine_requests", {"state": "running"}),
        Figure("requests_waiting", "engine_requests", {"state": "waiting"}),
        Figure("requests_finished", "engine_requests_finished"),
        Figure("preemptions", "preemptions"),
        Figure("leases_held", "leases", {"side": "reader"}),
        *_cache("kv_prefix", ("kv.queries", "queries"), ("kv.hits", "hits")),
        Figure("kv.hits", "saved_work", {"work": "prefill"}),
        Figure("kv.blocks_used", "kv_blocks", {"state": "used"}),
        Figure("kv.blocks_cached", "kv_blocks", {"state": "cached"}),
        Figure("kv.blocks_total", "kv_blocks", {"state": "total"}),
        *_cache(
            "encoder", ("encoder.queries", "queries"), ("encoder.hits", "hits"), ("encoder.evictions", "evictions")
        ),
        Figure("encoder.hits", "saved_work", {"work": "encoding"}),
        Figure("encoder.embeds_used", "encoder_embeds", {"state": "used"}),
        Figure("encoder.embeds_total", "encoder_embeds", {"state": "total"}),
        Figure("encoder.bytes_used", "encoder_budget_bytes", {"state": "used"}),
        Figure("encoder.bytes_total", "encoder_budget_bytes", {"state": "total"}),
        Figure("encoder.step_bytes", "encoder_budget_bytes", {"state": "step"}),
    ],
    "worker": [
        Figure("items_encoded", "worker_items_encoded"),
        Figure("embeds_encoded", "worker_embeds_encoded"),
        Figure("tokens_computed", "worker_tokens_computed"),
        Figure("items_viewed", "worker_items_received", {"path": "viewed"}),
        Figure("items_copied", "worker_items_received", {"path": "copied"}),
        Figure("bytes_viewed", "worker_received_bytes", {"path": "viewed"}),
        Figure("bytes_copied", "worker_received_bytes", {"path": "copied"}),
        Figure("bytes_viewed", "saved_ipc_bytes"),
        *_cache("encoder", ("encoder_entries", "entries"), ("encoder_bytes", "bytes")),
        *_cache("tensor_prefix", ("prefix_row_queries", "queries"), ("prefix_row_hits", "hits")),
        *_cache("tensor_prefix", ("prefix_bytes", "bytes"), ("prefix_evictions", "evictions")),
        Figure("prefix_row_hits", "saved_work", {"work": "hidden_states"}),
    ],
}
"""By kind of role. `draining` is missing: the supervisor is asked for it."""


@cache
def documented_metrics() -> dict[str, str]:
    """Return the meaning of each metric in the table of this module's docstring, by its name on the page."""
    lines = (__doc__ or "").splitlines()
    column = next((line.index("meaning") for line in lines if line.startswith("metric ")), 0)
    return {line.split()[0]: line[column:].strip() for line in lines if line.startswith(PREFIX)}


class StatsCollector(Collector):
    """Looks at the page and at the supervisor each time Prometheus asks; keeps nothing."""

    def __init__(self, view: SupervisorView, read_page: Callable[[], Snapshots]) -> None:
        self._view = view
        self._read_page = read_page

    def collect(self) -> Iterator[Family | InfoMetricFamily]:
        snapshots = self._read_page()
        yield self._build()
        yield from self._processes(snapshots)
        yield from figures_of(snapshots)

    def _build(self) -> InfoMetricFamily:
        facts = {
            "version": metadata.version("mmcached"),
            "python": platform.python_version(),
            "word_store": WORD_STORE_NAME,
        }
        return InfoMetricFamily(f"{PREFIX}build", "What runs here.", facts)

    def _processes(self, snapshots: Snapshots) -> Iterator[Family]:
        up, restarts, ages = (
            _family(name, is_gauge=name != "process_restarts", label_names=["role"])
            for name in ("process_up", "process_restarts", "heartbeat_age_seconds")
        )
        for role in role_statuses(self._view, snapshots):
            up.add_metric([role.name], float(role.state in ("starting", "running")))
            restarts.add_metric([role.name], role.restarts)
            if role.heartbeat_age_s is not None:
                ages.add_metric([role.name], role.heartbeat_age_s)
        draining = _family("draining", is_gauge=True, label_names=[])
        draining.add_metric([], float(self._view.is_draining))
        yield from (up, restarts, ages, draining)


def figures_of(snapshots: Snapshots) -> Iterator[Family]:
    """Yield what the slots of the page say, one family per metric, each sample with its role."""
    families: dict[str, Family] = {}
    for role, snapshot in snapshots.items():
        fields = FIELDS[role.kind]
        values = dict(zip(fields.names, fields.values(snapshot.stats), strict=True))
        gauges = {name for name, is_gauge in zip(fields.names, fields.is_gauge, strict=True) if is_gauge}
        for figure in FIGURES[role.kind]:
            # A frontend that has just started has its counters, and no ring yet.
            if figure.needs and not (values[figure.needs] or values[figure.source]):
                continue
            if figure.metric not in families:
                is_gauge = figure.source in gauges
                families[figure.metric] = _family(
                    figure.metric, is_gauge=is_gauge, label_names=["role", *figure.labels]
                )
            families[figure.metric].add_metric([str(role), *figure.labels.values()], values[figure.source])
    yield from families.values()


def make_registry(view: SupervisorView, read_page: Callable[[], Snapshots]) -> CollectorRegistry:
    """Return a registry of its own with our collector in it; nothing is collected before somebody asks."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatsCollector(view, read_page))
    return registry


def _family(metric: str, *, is_gauge: bool, label_names: list[str]) -> Family:
    name = PREFIX + metric
    described = documented_metrics().get(name if is_gauge else f"{name}_total", "")
    kind = GaugeMetricFamily if is_gauge else CounterMetricFamily
    return kind(name, described, labels=label_names)
