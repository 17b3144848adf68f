"""The displayed figures of a service, and their display names. No terminal output: the supervisor imports it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from mmcached.cli.watch.service_status import ServiceStatus
from mmcached.wire.fetch_stats import WARM_UP_STATES
from mmcached.wire.figures import samples
from mmcached.wire.saved_stats import NO_MODALITY
from mmcached.wire.stats import TROUBLES, SecondLevelStats, ServiceStats, Trouble
from mmcached.wire.vocabulary import MODALITIES, Modality

CACHES = {
    "processor": "processor (items)",
    "store": "store (records)",
    "second_level": "second level (records)",
    "encoder": "encoder (items)",
    "kv_prefix": "KV prefix (tokens)",
    "tensor_prefix": "tensor prefix (rows)",
}
"""Display name of each cache with the unit of its queries, by the label of the metrics page."""
WORK = {
    "hit": "hit (one in 64)",
    "put": "put",
    "queue": "request, until scheduled",
    "step": "step",
    "encode": "encoding of a step",
    "l2_get": "second level, fetch",
    "l2_put": "second level, save",
    "l2_claim": "second level, claim",
}
"""Display name of each kind of work, by the name in `ServiceStatus.latency`."""


class ModalityLine(msgspec.Struct, frozen=True, kw_only=True):
    """Items of one modality; `encoded` and `loaded` are of all workers together."""

    name: Modality
    queries: int
    hits: int
    processed: int
    encoded: int
    loaded: int
    embeds_encoded: int


def modalities_of(stats: ServiceStats) -> list[ModalityLine]:
    """Return the figures of each modality; empty if all items are images, which the caches' figures cover."""
    workers = [worker for engine in stats.engines for worker in engine.workers]
    lines = []
    for name in MODALITIES:
        items = getattr(stats.processor.by_modality, name)
        outputs = [getattr(worker.by_modality, name) for worker in workers]
        lines.append(
            ModalityLine(
                name=name,
                queries=items.queries,
                hits=items.hits,
                processed=items.processed,
                encoded=sum(each.encoded for each in outputs),
                loaded=sum(each.loaded for each in outputs),
                embeds_encoded=sum(each.embeds_encoded for each in outputs),
            )
        )
    found = [line for line in lines if any((line.queries, line.processed, line.encoded, line.loaded))]
    return found if any(line.name != "image" for line in found) else []


TROUBLE_WORDS: Mapping[Trouble, str] = {
    "": "",
    "unreached": "its server is not reached",
    "late": "its server does not answer in time",
    "denied": "its server does not accept the user or the password, or does not allow this user a command",
    "full": "its server has no memory left",
    "refused": "its server refuses commands; see the log of the role `second level`",
}


def caches_of(stats: ServiceStats) -> list[str]:
    """Return the caches to show: a second level, and engines' caches, only where they exist."""
    queries, _ = queries_and_hits(stats)
    has = {"store": True, "second_level": stats.second_level != SecondLevelStats()}
    return [cache for cache in CACHES if has.get(cache, bool(stats.engines or queries[cache]))]


def note_of(stats: ServiceStats) -> str:
    """Return the problem of a service that is ready; empty without one."""
    level = stats.second_level
    why = TROUBLE_WORDS[TROUBLES[level.trouble]] if level.trouble < len(TROUBLES) else ""
    if level.circuit_open:
        return f"the second level has failed too often, and is not called for a while: {why or 'see its log'}"
    if level.apart:
        return "the second level is not used: another host was flushed after this one; flush this one too"
    if level.other_version:
        return "the host that was flushed last has another version than this one (see the log): they share nothing"
    return f"the second level keeps nothing: {why}" if why else ""


def time_in_words(seconds: float) -> str:
    """Return a long time in its two largest units.

    >>> [time_in_words(seconds) for seconds in (3.2, 75.0, 3 * 3600 + 130.0, 2 * 86400 + 3700.0)]
    ['3 s', '1 min 15 s', '3 h 2 min', '2 d 1 h']
    """
    whole = int(seconds)
    counts = (("d", whole // 86400), ("h", whole // 3600 % 24), ("min", whole // 60 % 60), ("s", whole % 60))
    first = next((place for place, (_, count) in enumerate(counts) if count), len(counts) - 1)
    return " ".join(f"{count} {unit}" for unit, count in counts[first : first + 2])


def other_clients(status: ServiceStatus) -> int:
    return max(0, status.stats.clients - status.own_clients)


def clients_in_words(clients: int, own_clients: int) -> str:
    """Return both numbers of clients as text.

    >>> clients_in_words(1234, 3)
    '1,234 (and 3 of its own processes)'
    """
    return f"{clients:,} (and {own_clients} of its own processes)" if own_clients else f"{clients:,}"


def summary_of(status: ServiceStatus) -> str:
    """Return a one-line summary: uptime, requests, puts, hit rate of each cache with queries."""
    stats = status.stats
    queries, hits = queries_and_hits(stats)
    rates = [f"{CACHES[name]} {hits[name] / queries[name]:.0%}" for name in caches_of(stats) if queries[name]]
    puts = f"{stats.store.puts:,} record{'' if stats.store.puts == 1 else 's'} put"
    requests = f"{stats.requests_done:,} generations and embeddings, {stats.requests_failed:,} failed; {puts}"
    found = f"; found in the caches: {', '.join(rates)}" if rates else ""
    return f"{time_in_words(status.uptime_s or 0.0)}; {requests}{found}{saved_in_words(stats, '; ')}"


def saved_in_words(stats: ServiceStats, before: str = "") -> str:
    """Return the seconds that hits of the store have saved, as text behind `before`; empty if none are known.

    >>> from mmcached.wire.saved_stats import SavedOfModality, SavedStats
    >>> from mmcached.wire.stats import StoreStats
    >>> image = SavedOfModality(encoder_us=40_000_000, processor_us=900_000)
    >>> saved = SavedStats(image=image, video=SavedOfModality(encoder_us=2_300_000), other_us=500_000)
    >>> saved_in_words(ServiceStats(store=StoreStats(saved=saved)))
    'saved: 42.3 s of encoder time (image 40.0, video 2.3), 0.9 s of processing (image), 0.5 s of other work'
    """
    saved = stats.store.saved
    of_encoder = {name: each.encoder_us for name, each in saved.by_modality.items()}
    of_processor = {name: each.processor_us for name, each in saved.by_modality.items()}
    parts = [
        (saved.encoder_us, f"of encoder time{_parts_in_words(of_encoder)}"),
        (saved.processor_us, f"of processing{_parts_in_words(of_processor)}"),
        (saved.other_us, "of other work"),
    ]
    texts = [f"{us / 1e6:,.1f} s {words}" for us, words in parts if us]
    return f"{before}saved: {', '.join(texts)}" if texts else ""


def kept_in_words(stats: ServiceStats) -> str:
    """Return the pinned records and the state of the warm-up as text; empty without pins and without `store_warm_up`.

    >>> from mmcached.wire.fetch_stats import FetchStats, PinStats
    >>> from mmcached.wire.stats import StoreStats
    >>> fetches = FetchStats(warmed=512, warm_skipped=3, warm_up=WARM_UP_STATES.index("done"))
    >>> kept_in_words(ServiceStats(store=StoreStats(fetches=fetches, pins=PinStats(records=2, bytes=4096))))
    'pinned by clients: 2 records, 4,096 B; warm-up: done, 512 records fetched, 3 skipped'
    """
    fetches, pins = stats.store.fetches, stats.store.pins
    texts = []
    if pins.records:
        texts.append(f"pinned by clients: {pins.records:,} record{'' if pins.records == 1 else 's'}, {pins.bytes:,} B")
    state = WARM_UP_STATES[fetches.warm_up] if fetches.warm_up < len(WARM_UP_STATES) else "off"
    if state == "waiting":
        texts.append("warm-up: waiting for the second level")
    elif state != "off":
        texts.append(f"warm-up: {state}, {fetches.warmed:,} records fetched, {fetches.warm_skipped:,} skipped")
    return "; ".join(texts)


def _parts_in_words(modality_to_us: Mapping[str, int]) -> str:
    """Return the seconds of each modality in brackets; empty if no modality is known."""
    known = {name: us for name, us in modality_to_us.items() if us}
    if not known.keys() - {NO_MODALITY}:
        return ""
    only = len(known) == 1
    return f" ({', '.join(name if only else f'{name} {us / 1e6:,.1f}' for name, us in known.items())})"


def queries_and_hits(stats: ServiceStats) -> tuple[Counter[str], Counter[str]]:
    """Return the number of queries and of hits of each cache, all roles together."""
    workers = [worker for engine in stats.engines for worker in engine.workers]
    sums: dict[str, Counter[str]] = {"cache_queries": Counter(), "cache_hits": Counter()}
    for record in (stats, *stats.engines, *workers):
        for metric, _, value in samples(record):
            if metric.name in sums:
                sums[metric.name][metric.labels["cache"]] += value
    return sums["cache_queries"], sums["cache_hits"]
