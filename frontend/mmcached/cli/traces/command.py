"""The commands `mmcached replay` and `mmcached size`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmcached.cli.admin.printing import JsonOption, RunDirOption, directory_of, print_json, print_table, say
from mmcached.cli.config.units import in_unit_of
from mmcached.cli.terminal_text import shown
from mmcached.wire.errors import ConfigError, InvalidRequest

if TYPE_CHECKING:
    from mmcached.cli.traces.report import FoundPart, Latencies, UseReport
    from mmcached.cli.traces.simulation import Point
    from mmcached.cli.traces.use_trace import UseTrace

GIB = 1 << 30

TraceArgument = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="A file of recorded uses: mmcached's format, ServeGen, Bailian or Mooncake."),
]
ItemBytesOption = Annotated[
    str, typer.Option("--item-bytes", help="Size of a record where the trace has none.", metavar="SIZE")
]
ItemCostOption = Annotated[
    float, typer.Option("--item-cost-s", min=0, help="Seconds that a miss costs where the trace does not say.")
]
SvgOption = Annotated[Path | None, typer.Option("--svg", help="Also draw a picture into this file.")]
ITEM_BYTES = "19288089B"


def register(app: typer.Typer) -> None:
    app.command()(replay)
    app.command()(size)


def replay(
    trace: TraceArgument,
    *,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.001, help="Uses per second on average. Default: as recorded, else at once."),
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Only simulate a store, of --store-gb.")] = False,
    store_gb: Annotated[
        str | None, typer.Option("--store-gb", metavar="SIZE", help="Of the simulated store: a number of GiB, `40GiB`.")
    ] = None,
    item_bytes: ItemBytesOption = ITEM_BYTES,
    item_cost_s: ItemCostOption = 0.1,
    svg: SvgOption = None,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Play recorded uses against a store. Shows what it finds, the seconds that this saves, and its latencies."""
    if simulate != (store_gb is not None):
        raise InvalidRequest("--store-gb", store_gb or "", "is needed with --simulate, and only there")
    uses = _read(trace, item_bytes, item_cost_s)
    if rate is not None:
        uses = uses.at_rate(rate)
    from mmcached.cli.traces.report import report_of

    with _progress(len(uses.keys), "replay") as advance:
        if simulate:
            from mmcached.cli.traces.simulation import play

            report = report_of(uses, play(uses, _bytes_of_gb(store_gb or ""), advance))
        else:
            from mmcached.cli.traces.playing import play_on
            from mmcached.client import Client

            with Client(directory_of(run_dir), fail_open=False) as client:
                played = play_on(client, uses, advance)
            report = report_of(uses, played.is_found, played)
    if svg is not None:
        _draw_report(svg, uses, report)
    if as_json:
        print_json(report)
    else:
        _print_report(report)


def size(
    trace: TraceArgument,
    *,
    item_bytes: ItemBytesOption = ITEM_BYTES,
    item_cost_s: ItemCostOption = 0.1,
    svg: SvgOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how large a store should be for recorded uses. Simulates stores of many sizes, and touches no service."""
    uses = _read(trace, item_bytes, item_cost_s)
    from mmcached.cli.traces.simulation import SIMULATED_USES, curve, curve_sizes, knee

    with _progress(len(curve_sizes(uses)) * min(len(uses.keys), SIMULATED_USES), "sizes") as advance:
        points = curve(uses, advance)
    best = knee(points)
    if svg is not None:
        _write(svg, _curve_picture(points, best))
    if as_json:
        print_json({"total_s": uses.total_s, "most_found": uses.most_found, "knee": best, "points": points})
        return
    rows = [
        [
            _gib(each.store_bytes),
            _percent(each.found),
            _percent(each.found_bytes),
            _percent(each.saved),
            f"{each.saved * uses.total_s:,.1f}",
            "<-- knee" if each is best else "",
        ]
        for each in points
    ]
    print_table(rows, "store", "uses found", "bytes found", "seconds saved", "s", "")
    say(
        f"{len(uses.keys):,} uses of {len(set(uses.keys.tolist())):,} items cost {uses.total_s:,.1f} s without "
        f"a store; no store finds more than {_percent(uses.most_found)} of the uses"
    )
    say(f"--store-gb {_gib(best.store_bytes).replace(' ', '')} saves {_percent(best.saved)} of these seconds")


def _read(path: Path, item_bytes: str, item_cost_s: float) -> UseTrace:
    from mmcached.cli.traces.readers import Assumed, read_uses

    nbytes = in_unit_of("item_bytes", item_bytes)
    if not isinstance(nbytes, int) or nbytes < 1:
        raise ConfigError("--item-bytes", item_bytes, "must be a size such as 18MiB")
    return read_uses(path, Assumed(nbytes, item_cost_s))


def _bytes_of_gb(text: str) -> int:
    gib = in_unit_of("store_gb", text)
    try:
        nbytes = int(float(str(gib)) * GIB)
    except (ValueError, OverflowError):
        nbytes = 0
    if nbytes < 1 << 20:
        raise ConfigError("--store-gb", text, "must be a size of 1 MiB or more, such as 40GiB")
    return nbytes


@contextmanager
def _progress(total: int, words: str) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr while the trace is played, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(words, total=total)
        yield lambda: progress.advance(task)


def _print_report(report: UseReport) -> None:
    parts = [report.total, *(report.by_modality if len(report.by_modality) > 1 else [])]
    print_table(
        [_row(part) for part in parts], "", "uses", "found", "bytes found", "cost, s", "saved, s", "seconds saved"
    )
    if report.latencies is not None:
        say(_latency_text(report.latencies))


def _row(part: FoundPart) -> list[str]:
    share = part.saved_s / part.cost_s if part.cost_s else 0.0
    return [
        shown(part.name),
        f"{part.num_uses:,}",
        _percent(part.num_found / part.num_uses),
        _percent(part.bytes_share),
        f"{part.cost_s:,.1f}",
        f"{part.saved_s:,.1f}",
        _percent(share),
    ]


def _latency_text(of: Latencies) -> str:
    lines = [
        f"hit {_ms(of.hit_p50_s)}, 99th percentile {_ms(of.hit_p99_s)}; "
        f"put {_ms(of.put_p50_s)}, 99th percentile {_ms(of.put_p99_s)}",
        f"{of.hits_per_s:,.0f} hits and {of.puts_per_s:,.0f} puts a second for {of.length_s:,.1f} s; "
        f"a use began at most {_ms(of.late_max_s)} late, 99th percentile {_ms(of.late_p99_s)}",
    ]
    if of.num_refused:
        lines.append(f"the store refused {of.num_refused:,} puts")
    return "\n".join(lines)


def _draw_report(path: Path, trace: UseTrace, report: UseReport) -> None:
    from mmcached.cli.traces.picture import chart

    lines = {
        "uses found": [100 * each.found for each in report.windows],
        "seconds saved": [100 * each.saved for each in report.windows],
    }
    if report.latencies is not None:
        lines["latency p99, ms"] = [1000 * each.p99_s for each in report.windows]
    x_label = "number of the use" if trace.times_s is None else "seconds of the trace"
    y_label = "%" if report.latencies is None else "%, ms"
    _write(path, chart("Replay", x_label, [each.end for each in report.windows], lines, y_label=y_label))


def _curve_picture(points: list[Point], best: Point) -> str:
    from mmcached.cli.traces.picture import chart

    xs = [each.store_bytes / GIB for each in points]
    lines = {
        "uses missed": [100 * (1 - each.found) for each in points],
        "seconds not saved": [100 * (1 - each.saved) for each in points],
    }
    return chart("What a store misses, by its size", "store, GiB", xs, lines, mark=best.store_bytes / GIB)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError("--svg", str(path), error.strerror or "cannot be written") from None


def _gib(nbytes: int) -> str:
    gib = nbytes / GIB
    return f"{gib:.1f} GiB" if gib >= 1 else f"{nbytes / (1 << 20):.0f} MiB"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
