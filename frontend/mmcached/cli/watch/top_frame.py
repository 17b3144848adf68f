"""Draws an `Overview` for a terminal, the most important rows first: a small terminal shows only the top."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from mmcached.cli.terminal_text import shown
from mmcached.cli.watch.latencies import LatencyStatus, in_words
from mmcached.cli.watch.overview import NurseriesLine, Overview, RingLine, RoleLine
from mmcached.cli.watch.overview_pages import SAMPLE_S
from mmcached.cli.watch.shown_figures import CACHES, WORK, clients_in_words, time_in_words

_NOTHING = "–"
_BARS = " ▁▂▃▄▅▆▇█"
_NUM_BARS = 30


def draw(overview: Overview) -> RenderableType:
    parts: list[RenderableType] = [_head(overview)]
    if len(overview.history) > 1:
        parts.append(_history(overview.history))
    parts += [_roles(overview.roles), _caches(overview)]
    if overview.modalities:
        parts.append(_modalities(overview))
    if overview.latencies:
        parts.append(_latencies(overview))
    parts.append(_rings(overview.rings))
    if overview.nurseries is not None:
        parts.append(_nurseries(overview.nurseries))
    if overview.engines:
        parts.append(_engines(overview))
    if overview.readers:
        parts.append(_readers(overview))
    if overview.slow:
        parts.append(_slow(overview))
    return Group(*parts)


class Fitted:
    """A frame on a screen; the last line says how to end, and how many rows are left out if it does not fit."""

    def __init__(self, frame: RenderableType) -> None:
        self._frame = frame

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._frame, options.update(height=None), pad=False)
        room = options.height or console.height
        left_out = len(lines) - room + 1
        for line in lines[: room - 1]:
            yield from line
            yield Segment.line()
        rows = f"+{left_out} rows: a larger window shows them; " if left_out > 0 else ""
        yield Text(f"{rows}q ends", style="bold", no_wrap=True, overflow="crop")


def in_bytes(number: int) -> str:
    """Return a size as people read it.

    >>> [in_bytes(number) for number in (0, 1023, 5 << 20, 3 << 29)]
    ['0 B', '1023 B', '5.0 MiB', '1.5 GiB']
    """
    if number < 1024:
        return f"{number} B"
    size = number / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def in_short(number: int) -> str:
    """Return a count in at most nine columns: exactly, or rounded with a unit.

    >>> [in_short(number) for number in (0, 9_999_999, 10_000_000, 123_456_789_012)]
    ['0', '9,999,999', '10.0 M', '123.5 G']
    """
    if number < 10_000_000:
        return f"{number:,}"
    size, unit = (number / 1e6, "M") if number < 1e9 else (number / 1e9, "G")
    return f"{size:.1f} {unit}"


def _head(overview: Overview) -> Text:
    word = "draining" if overview.draining else "ready" if overview.ready else "not ready"
    style = "green" if overview.ready and not overview.draining else "red"
    counts = f"{overview.requests_open} open, {overview.requests_done:,} done, {overview.requests_failed:,} failed"
    figures = f"requests: {counts}; clients: {clients_in_words(overview.clients, overview.own_clients)}"
    note = (f"\n{overview.note}" if overview.note else "", "red")
    return Text.assemble(
        f"mmcached {overview.version} in {shown(str(overview.run_dir))}: ",
        (word, style),
        "" if overview.uptime_s is None else f", up {time_in_words(overview.uptime_s)}",
        "" if overview.interval_s is None else f'; "now" is the last {overview.interval_s:.0f} s',
        f"\n{shown(overview.reason)}",
        note,
        f"\n{figures}",
        f"\n{overview.saved}" if overview.saved else "",
        f"\n{overview.kept}" if overview.kept else "",
    )


def _history(rates: list[float]) -> Text:
    """Return a line with a bar for each of up to `_NUM_BARS` spans of equal length, the newest on the right."""
    most, step = max(rates), -(-len(rates) // _NUM_BARS)
    spans = [rates[max(0, end - step) : end] for end in range(len(rates), 0, -step)][::-1]
    heights = [round((len(_BARS) - 1) * sum(span) / len(span) / most) if most else 0 for span in spans]
    words = f"store hits/s, {time_in_words(len(rates) * SAMPLE_S)}: {''.join(_BARS[height] for height in heights)}"
    return Text(f"{words} most {in_short(round(most))}", no_wrap=True, overflow="ellipsis")


def _table(*headings: str) -> Table:
    """Return a table with names on the left and numbers on the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left", no_wrap=True, overflow="ellipsis")
    return table


def _add(table: Table, *cells: str, style: str | None = None) -> None:
    table.add_row(*(Text(shown(cell)) for cell in cells), style=style)  # a name with brackets is no markup


def _roles(roles: list[RoleLine]) -> Table:
    table = _table("role", "pid", "CPU %", "memory", "restarts", "state")
    for role in roles:
        cpu = _NOTHING if role.cpu is None else f"{role.cpu:.1f}"
        memory = _NOTHING if role.memory_bytes is None else in_bytes(role.memory_bytes)
        style = "red" if role.complaint else None
        _add(table, role.name, str(role.pid or _NOTHING), cpu, memory, str(role.restarts), role.state, style=style)
    return table


def _caches(overview: Overview) -> Table:
    table = _table("cache", "hits/s", "hit rate now", "in sum", "hits", "queries")
    for line in overview.caches:
        rates = (_share(line.rate_now), _share(line.rate))
        _add(table, CACHES[line.name], _per_s(line.hits_per_s), *rates, in_short(line.hits), in_short(line.queries))
    return table


def _modalities(overview: Overview) -> Table:
    table = _table("items", "queries", "hits", "processed", "encoded", "loaded", "embeddings")
    for line in overview.modalities:
        numbers = (line.queries, line.hits, line.processed, line.encoded, line.loaded, line.embeds_encoded)
        _add(table, line.name, *map(in_short, numbers))
    return table


def _latencies(overview: Overview) -> Table:
    table = _table("latency", "p50 now", "p99 now", "p50", "p99", "measured")
    for line in overview.latencies:
        _add(table, WORK[line.name], *_quantiles(line.now), *_quantiles(line.total), in_short(line.total.num))
    return table


def _rings(rings: list[RingLine]) -> Table:
    table = _table("ring", "full", "used", "of", "leased", "entries", "leases", "evictions/s")
    for ring in rings:
        sizes = map(in_bytes, (ring.used_bytes, ring.capacity_bytes, ring.leased_bytes))
        full = _share(ring.used_bytes / ring.capacity_bytes)
        _add(
            table, ring.name, full, *sizes, in_short(ring.entries), in_short(ring.leases), _per_s(ring.evictions_per_s)
        )
    return table


def _nurseries(line: NurseriesLine) -> Table:
    table = _table("nurseries", "full", "used", "of", "puts/s", "puts", "promotions", "refusals")
    counts = map(in_short, (line.puts, line.promotions, line.refusals))
    full, sizes = _share(line.used_bytes / line.budget_bytes), map(in_bytes, (line.used_bytes, line.budget_bytes))
    _add(table, in_short(line.num), full, *sizes, _per_s(line.puts_per_s), *counts)
    return table


def _engines(overview: Overview) -> Table:
    table = _table("engine", "running", "waiting", "finished", "steps/s", "KV blocks", "leases")
    for line in overview.engines:
        counts = map(in_short, (line.running, line.waiting, line.finished))
        blocks = f"{line.kv_used:,} of {line.kv_total:,}"
        _add(table, f"engine {line.index}", *counts, _per_s(line.steps_per_s), blocks, f"{line.leases:,}")
    return table


def _readers(overview: Overview) -> Table:
    table = _table("leases of", "pid", "leases")
    for line in overview.readers:
        _add(table, line.name or "?", str(line.pid), f"{line.leases:,}")
    return table


def _slow(overview: Overview) -> Table:
    table = _table("slow", "took", "number", "at")
    for call in overview.slow:
        at = datetime.fromtimestamp(call.ended_ms / 1000).astimezone().strftime("%H:%M:%S")
        _add(table, call.what, in_words(call.took_ns / 1e9), str(call.number), at)
    return table


def _share(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.0%}"


def _per_s(rate: float | None) -> str:
    return _NOTHING if rate is None else in_short(round(rate))


def _quantiles(latency: LatencyStatus | None) -> tuple[str, str]:
    return (_NOTHING, _NOTHING) if latency is None else (in_words(latency.p50_s), in_words(latency.p99_s))
