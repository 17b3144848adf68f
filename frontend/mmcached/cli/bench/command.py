"""The command `mmcached bench`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import msgspec
import typer

from mmcached.cli.bench.figures import KIB, MIB, OF_REDIS, SIZES, CallFigure, size_text, this_host
from mmcached.cli.config.units import in_unit_of
from mmcached.cli.installed import installed_version
from mmcached.wire.errors import ConfigError

MAX_CLIENTS = 256
MAX_RECORD_BYTES = 1024 * MIB
_SIZES = ",".join(size_text(each).replace(" ", "") for each in SIZES)


def bench(
    sizes: Annotated[str, typer.Option("--sizes", metavar="SIZES", help="Record sizes: `4KiB,1MiB`.")] = _SIZES,
    clients: Annotated[str, typer.Option("--clients", metavar="NUMBERS", help="Numbers of clients: `1,4`.")] = "1,4",
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=3600, help="How long to measure.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure the store on this host. Compares it with Redis and a copy of memory."""
    chosen_sizes, chosen_clients = parse_sizes(sizes), parse_clients(clients)
    from mmcached.cli.bench.run import measure

    figures = measure(chosen_sizes, chosen_clients, seconds)
    if as_json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")
    else:
        _print(figures)


def parse_sizes(text: str) -> list[int]:
    """Return sizes in bytes, the smallest first; ConfigError for an invalid size, or one above 1 GiB."""
    found = set()
    for each in text.split(","):
        size = in_unit_of("size_bytes", each)
        size = int(size) if isinstance(size, float) and size >= KIB else size  # 4.7MiB
        if not isinstance(size, int) or not 1 <= size <= MAX_RECORD_BYTES:
            raise ConfigError("sizes", each, f"must be sizes like 64KiB, from 1B to {size_text(MAX_RECORD_BYTES)}")
        found.add(size)
    return sorted(found)


def parse_clients(text: str) -> list[int]:
    """Return numbers of clients, the smallest first; ConfigError for an invalid number, or more than a store takes."""
    found = set()
    for each in text.split(","):
        if not each.strip().isdecimal() or not 1 <= int(each) <= MAX_CLIENTS:
            raise ConfigError("clients", each, f"must be numbers from 1 to {MAX_CLIENTS}")
        found.add(int(each))
    return sorted(found)


def _print(figures: Sequence[CallFigure]) -> None:
    from rich.console import Console

    from mmcached.cli.bench.table import tables, verdict

    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in tables(figures):
        console.print(table)
    console.print(verdict(figures), highlight=False)
    if not {each.kind for each in figures} & set(OF_REDIS):
        console.print("without Redis: redis-server is not installed", highlight=False)
    console.print(f"{this_host()}; mmcached {installed_version()}", highlight=False, markup=False)
