"""Lists the figures of a statistics record, and the metrics of each figure.

    class Example(msgspec.Struct):
        hits: Annotated[int, Metric("cache_hits", cache="processor")] = 0       a counter, and its metric
        waiting: Annotated[Gauge, Metric("items_waiting")] = 0                  may fall
        ring: Annotated[RingStats, Ring("store", cache="store")] = RingStats()  a nested record: `ring.used_bytes`, ...
        video: Annotated[ItemStats, Of("video")] = ItemStats()                  a record of one modality
        by_host: Annotated[dict[str, HostStats], By("host")] = {}               a table: counters for each host
        wait: Annotated[Histogram, Metric("wait_seconds")] = Histogram()        as many words as a histogram has

The records themselves are in `stats` and `engine_stats`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import Annotated, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from mmcached.wire.errors import InvariantError
from mmcached.wire.latency import Histogram
from mmcached.wire.slow_log import SlowLog

_GAUGE = "gauge"
Gauge = Annotated[int, _GAUGE]
"""A current value: starts at 0 when its role starts, and may fall."""
OTHER = "other"
"""The key of all keys beyond a table's limit."""
MAX_KEYS = 63
"""Keys of a table on the stats page, besides `OTHER`."""

RecordT = TypeVar("RecordT", bound=msgspec.Struct)


class StatsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all statistics records. A reader ignores figures that it does not know, and takes missing ones as 0."""


class Metric:
    """One name, with labels, of a figure on the metrics page.

    Args:
        name: A key of `METRICS`. `{modality}` in a label is replaced by the record's `Of`.
        needs: Another figure of the record; the metric is left out while both are 0.
        scale: Value of the metric for 1 of the figure.
        labels: Labels beside `role`, which every figure has.
    """

    def __init__(self, name: str, *, needs: str = "", scale: float = 1, **labels: str) -> None:
        self.name = name
        self.scale = scale
        self.needs = needs
        self.labels = labels


def of_modality(name: str) -> Metric:
    return Metric(f"modality_{name}", modality="{modality}")


class Of(NamedTuple):
    """The modality of a record's figures."""

    modality: str


class By(NamedTuple):
    """The key of a table: a dictionary with a record of counters for each key.

    Attributes:
        label: Label with the key on the metrics page, as `client` or `tenant`.
        title: Begin of the table's lines in `mmcached status`; the key follows. "": the label.
    """

    label: str
    title: str = ""


class Table(NamedTuple):
    """A table of a record: field `field` maps each key to a `record`."""

    field: str
    record: type[msgspec.Struct]
    by: By


class Figure(NamedTuple):
    """One figure of a record; `name` is dotted in nested records (`kv.queries`), metrics have all labels."""

    name: str
    is_gauge: bool
    metrics: tuple[Metric, ...]
    block: type[Histogram] | type[SlowLog] | None = None
    """The record type that is stored as several words; None for a number."""

    @property
    def words(self) -> list[str]:
        return [f"{self.name}.{index}" for index in range(self.block.num_words)] if self.block else [self.name]


@cache
def figures(record: type[msgspec.Struct]) -> tuple[Figure, ...]:
    """List a record's figures and those of nested records, without lists (other roles' records) and dictionaries.

    Raises:
        InvariantError: A field is neither a whole number, a histogram, a slow log, a record, a list nor a dictionary.
    """
    return tuple(_figures(record, "", {}))


def _figures(record: type[msgspec.Struct], prefix: str, words: Mapping[str, str]) -> Iterator[Figure]:
    for field, hint in get_type_hints(record, include_extras=True).items():
        kind, *said = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        name = prefix + field
        if kind in (int, Histogram, SlowLog):
            metrics = tuple(_resolved(each, prefix, words) for each in said if isinstance(each, Metric))
            block = None if kind is int else kind
            yield Figure(name, _GAUGE in said or block is SlowLog, metrics, block)
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            of_record = next((each._asdict() for each in said if isinstance(each, Of)), {})
            yield from _figures(kind, f"{name}.", {**words, **of_record})
        elif get_origin(kind) not in (list, dict):
            raise InvariantError(
                f"{record.__name__}.{field} is no whole number, histogram, slow log, record, list or dict"
            )


def _resolved(metric: Metric, prefix: str, words: Mapping[str, str]) -> Metric:
    labels = {label: value.format(**words) for label, value in metric.labels.items()}
    needs = metric.needs and prefix + metric.needs
    return Metric(metric.name, needs=needs, scale=metric.scale, **labels)


def histograms(stats: msgspec.Struct) -> Iterator[tuple[Metric, Histogram]]:
    for figure in figures(type(stats)):
        if figure.block is Histogram:
            for metric in figure.metrics:
                yield metric, attrgetter(figure.name)(stats)


def samples(stats: msgspec.Struct) -> Iterator[tuple[Metric, bool, int]]:
    """Yield each metric of a record's numbers, whether it is a gauge, and its value."""
    for figure in figures(type(stats)):
        if figure.block:
            continue
        value: int = attrgetter(figure.name)(stats)
        for metric in figure.metrics:
            if value or not metric.needs or attrgetter(metric.needs)(stats):
                yield metric, figure.is_gauge, value
    for table in tables(type(stats)):
        for key, record in getattr(stats, table.field).items():
            for metric, is_gauge, value in samples(record):
                labels = {table.by.label: key, **metric.labels}
                yield Metric(metric.name, needs="", scale=metric.scale, **labels), is_gauge, value


@cache
def tables(record: type[msgspec.Struct]) -> tuple[Table, ...]:
    """List a record's tables."""
    hints = get_type_hints(record, include_extras=True).items()
    return tuple(
        Table(field, get_args(get_args(hint)[0])[1], each)
        for field, hint in hints
        for each in get_args(hint)[1:]
        if isinstance(each, By)
    )


class CountsByKey(Generic[RecordT]):
    """The counters of one table.

    Args:
        record: Record of one key; all its figures are counters.
        max_keys: Number of keys with counters of their own; later keys count as `OTHER`.
    """

    def __init__(self, record: type[RecordT], max_keys: int = MAX_KEYS) -> None:
        self._record = record
        self._max_keys = max_keys
        self._key_to_counts: dict[str, dict[str, int]] = {}

    def add(self, key: str, **counts: int) -> None:
        """Add to counters of a key, named as the record's fields; zeros alone add no key."""
        if not any(counts.values()):
            return
        own = self._key_to_counts.get(key) or self._counts_of_new(key)
        for name, number in counts.items():
            own[name] += number

    def stats(self) -> dict[str, RecordT]:
        """Return the record of each key that has been counted."""
        return {key: self._record(**counts) for key, counts in self._key_to_counts.items()}

    def _counts_of_new(self, key: str) -> dict[str, int]:
        if len(self._key_to_counts.keys() - {OTHER}) >= self._max_keys:
            key = OTHER
        return self._key_to_counts.setdefault(key, dict.fromkeys(self._record.__struct_fields__, 0))
