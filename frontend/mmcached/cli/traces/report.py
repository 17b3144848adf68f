"""Summarises played uses: shares, seconds, latencies; in all, by modality, and over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmcached.cli.traces.playing import Played
from mmcached.cli.traces.use_trace import UseTrace

NUM_WINDOWS = 40


@dataclass(frozen=True, slots=True)
class FoundPart:
    """The found part of all uses, or of one modality.

    Attributes:
        num_uses, num_found: Uses, and those that the store had.
        bytes_share: Share of the bytes that were found.
        cost_s, saved_s: Seconds that all uses cost without a store, and those of the found ones.
    """

    name: str
    num_uses: int
    num_found: int
    bytes_share: float
    cost_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """How fast a real store was; seconds.

    Attributes:
        num_refused: Puts that the store refused.
        late_max_s: The greatest delay of a use behind its time.
        length_s: Seconds of the run.
    """

    hit_p50_s: float
    hit_p99_s: float
    put_p50_s: float
    put_p99_s: float
    late_p99_s: float
    late_max_s: float
    num_refused: int
    hits_per_s: float
    puts_per_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Window:
    """A fortieth of the uses, one after the other.

    Attributes:
        end: Seconds since the first use; its number without times.
        found, saved: Shares of uses and of seconds.
        p99_s: Of the uses' latency; 0 in a simulation.
    """

    end: float
    found: float
    saved: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class UseReport:
    """All figures of played uses; `latencies` is None for a simulation."""

    total: FoundPart
    by_modality: list[FoundPart]
    latencies: Latencies | None
    windows: list[Window]


def report_of(trace: UseTrace, is_found: npt.NDArray[np.bool_], played: Played | None = None) -> UseReport:
    every = np.ones(len(trace.keys), np.bool_)
    names = np.array(trace.modalities)[trace.keys]
    parts = [_part(name, trace, names == name, is_found) for name in sorted(set(names.tolist()))]
    latencies = None if played is None else _latencies(played)
    return UseReport(_part("all", trace, every, is_found), parts, latencies, _windows(trace, is_found, played))


def _part(name: str, trace: UseTrace, is_in: npt.NDArray[np.bool_], is_found: npt.NDArray[np.bool_]) -> FoundPart:
    nbytes, seconds, hits = trace.sizes[trace.keys], trace.costs_s[trace.keys], is_in & is_found
    return FoundPart(
        name,
        int(is_in.sum()),
        int(hits.sum()),
        float(nbytes[hits].sum() / nbytes[is_in].sum()),
        float(seconds[is_in].sum()),
        float(seconds[hits].sum()),
    )


def _latencies(played: Played) -> Latencies:
    hits, puts = played.took_s[played.is_found], played.took_s[~played.is_found]
    return Latencies(
        _percentile(hits, 50),
        _percentile(hits, 99),
        _percentile(puts, 50),
        _percentile(puts, 99),
        _percentile(played.late_s, 99),
        float(played.late_s.max()),
        int((~played.is_found & ~played.is_kept).sum()),
        len(hits) / played.length_s,
        len(puts) / played.length_s,
        played.length_s,
    )


def _windows(trace: UseTrace, is_found: npt.NDArray[np.bool_], played: Played | None) -> list[Window]:
    seconds, windows = trace.costs_s[trace.keys], []
    for uses in np.array_split(np.arange(len(trace.keys)), min(NUM_WINDOWS, len(trace.keys))):
        hits, asked = is_found[uses], seconds[uses].sum()
        end = float(uses[-1]) if trace.times_s is None else float(trace.times_s[uses[-1]])
        p99 = 0.0 if played is None else _percentile(played.took_s[uses] + played.late_s[uses], 99)
        saved = float(seconds[uses][hits].sum() / asked) if asked else 0.0
        windows.append(Window(end, float(hits.mean()), saved, p99))
    return windows


def _percentile(values: Sequence[float] | npt.NDArray[np.float64], percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else 0.0
