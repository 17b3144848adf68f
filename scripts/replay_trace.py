"""How much of a recorded service's prompts a KV cache finds, by the size of its pool and by its eviction policy.

hit rate        share of all prompt blocks that a lookup finds, in percent. A prompt's last block counts as asked for
                and is never found (the last token is always computed), so even what holds everything stays below the
                share of repeated blocks; of long prompts that are mixed in, nothing is counted
infinite        everything that ever came is still there
Belady          knows the future; no policy finds more (`trace_replay.ideals` says why)
ideal LRU       exact LRU over blocks; nothing is held for running requests
LRU, segmented  the real manager with its eviction policies, with requests that run (`trace_replay.replay`)

as recorded     the trace alone
steady scan     after every 10 prompts a one-off one of 250 blocks (128k tokens), which is half of all blocks if prompts
                have 24 blocks on average
scan bursts     after every 200 prompts 40 such, as a batch job would send

A trace is a file in the Mooncake format: `trace_replay.prompts`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmark import Row, print_rows
from trace_replay.chart import Panel, svg
from trace_replay.ideals import belady, ideal_lru, num_counted
from trace_replay.prompts import BLOCK_TOKENS, Prompt, read_trace, with_scans
from trace_replay.replay import Replay

SIZES = (1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000, 100_000)
QUICK_SIZES = (2_000, 20_000)
NUM_RUNNING = (1, 32)  # one at a time: freed at once
SCAN_BLOCKS = 250
OURS = {"LRU": "lru", "segmented LRU": "segmented_lru"}
PEERS = ("infinite", "Belady", "ideal LRU")

TRAFFIC: dict[str, Callable[[list[Prompt]], list[Prompt]]] = {
    "as recorded": lambda prompts: prompts,
    "steady scan": lambda prompts: with_scans(prompts, every=10, num_scans=1, num_blocks=SCAN_BLOCKS),
    "scan bursts": lambda prompts: with_scans(prompts, every=200, num_scans=40, num_blocks=SCAN_BLOCKS),
}


@dataclass(frozen=True, slots=True)
class Curves:
    """Hit rates in percent, by the name of who has them, for each pool size.

    Attributes:
        sizes: blocks, the null block not included.
    """

    traffic: str
    num_running: int
    sizes: Sequence[int]
    rates: dict[str, list[float]]

    @property
    def title(self) -> str:
        running = f"{self.num_running} requests at a time" if self.num_running > 1 else "freed at once"
        return f"{self.traffic}, {running}"


def measure(prompts: list[Prompt], sizes: Sequence[int], *, is_quick: bool) -> list[Curves]:
    """Return the curves of all traffic; quick ones have many requests at a time only, and no pool for everything."""
    measured = []
    for traffic, mix in TRAFFIC.items():
        started = time.monotonic()
        mixed = mix(prompts)
        everything = sum(len(prompt.block_ids) for prompt in mixed)
        all_sizes = sorted({*sizes} if is_quick else {everything, *(size for size in sizes if size < everything)})
        measured += curves_of(traffic, mixed, all_sizes, NUM_RUNNING[-1:] if is_quick else NUM_RUNNING)
        print(f"{traffic}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return measured


def curves_of(traffic: str, prompts: list[Prompt], sizes: Sequence[int], all_running: Sequence[int]) -> list[Curves]:
    percent, replay = 100 / num_counted(prompts), Replay(prompts)
    infinite = percent * ideal_lru(prompts, sum(len(prompt.block_ids) for prompt in prompts))
    peers = {
        "infinite": [infinite for _ in sizes],
        "Belady": [percent * belady(prompts, size) for size in sizes],
        "ideal LRU": [percent * ideal_lru(prompts, size) for size in sizes],
    }
    curves = []
    for num_running in all_running:
        ours = {
            name: [percent * replay.run(size, policy, num_running=num_running) for size in sizes]
            for name, policy in OURS.items()
        }
        curves.append(Curves(traffic, num_running, sizes, {**peers, **ours}))
    return curves


def rows(measured: Sequence[Curves]) -> list[Row]:
    """Return each of ours beside each peer, and beside our LRU."""
    pairs = [(name, peer) for name in OURS for peer in (*PEERS, "LRU") if name != peer]
    return [
        Row(
            name=f"hit rate, {name}",
            params=f"{curves.title}, {size:,} blocks",
            ours=(ours := curves.rates[name][index]),
            unit="%",
            peer=peer,
            peer_value=(theirs := curves.rates[peer][index]),
            ratio=ours / theirs if theirs else 1.0,
        )
        for curves in measured
        for index, size in enumerate(curves.sizes)
        for name, peer in pairs
    ]


def print_tables(measured: Sequence[Curves]) -> None:
    for curves in measured:
        table = Table(title=f"hit rate in %: {curves.title}", title_justify="left")
        for column in ("blocks", "tokens", *curves.rates, "gain over LRU", "of what Belady gains"):
            table.add_column(column, justify="right")
        for index, size in enumerate(curves.sizes):
            rates = {name: each[index] for name, each in curves.rates.items()}
            gain, room = rates["segmented LRU"] - rates["LRU"], rates["Belady"] - rates["LRU"]
            share = f"{gain / room:.0%}" if room > 1 else ""  # of nothing, any share is noise
            figures = (f"{rate:.2f}" for rate in rates.values())
            table.add_row(f"{size:,}", f"{size * BLOCK_TOKENS / 1e6:,.1f}M", *figures, f"{gain:+.2f}", share)
        Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="hit rate of a recorded service by pool size and eviction policy")
    parser.add_argument("trace", type=Path, help="a file in the Mooncake format")
    parser.add_argument("--json", action="store_true", help="print a list of rows instead of tables")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the curves, too")
    parser.add_argument("--quick", action="store_true", help="two sizes, 32 requests at a time")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BLOCKS", help="other pool sizes, at least 1 block")
    arguments = parser.parse_args()
    if arguments.plot is not None and arguments.plot.suffix != ".svg":
        parser.error(f"--plot {arguments.plot}: draws SVG only")
    sizes = arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES)
    if min(sizes) < 1:
        parser.error(f"--sizes {min(sizes)}: at least 1 block")
    try:
        prompts = read_trace(arguments.trace)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    measured = measure(prompts, sizes, is_quick=arguments.quick)
    if arguments.json:
        print_rows(parser.description or "", rows(measured), as_json=True)
    else:
        print_tables(measured)
    if arguments.plot is not None:
        panels = [Panel(curves.title, curves.sizes, curves.rates) for curves in measured]
        arguments.plot.write_text(svg(panels, x_label="blocks in the pool", y_label="%"), encoding="utf-8")


if __name__ == "__main__":
    main()
