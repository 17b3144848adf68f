"""Runs the simulation: `python -m scripts.studies.simulate_fleet [--max-hosts 1000] [--json]`, the page's fleets.

A fleet of one's own: `--hosts 20 --affinity 0.5 …`; a recorded service: `--trace FILE`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

from scripts.studies.simulate_fleet.cases import BASE, FIRST_GIB, FIRST_LEVELS, HOSTS, SECOND_GIB, Case, cases, rules
from scripts.studies.simulate_fleet.levels import play
from scripts.studies.simulate_fleet.report import Row, rows_of, rule_lines, table_lines
from scripts.studies.simulate_fleet.requests import Load, recorded
from scripts.studies.traces import read_trace


def main() -> None:
    parser = argparse.ArgumentParser(description="what a second level is worth to a fleet of hosts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--encode-s", type=float, default=0.1, help="encoder time of a picture")
    parser.add_argument("--max-hosts", type=int, default=HOSTS[-1], help="1000 hosts take a minute or two, and 2 GiB")
    parser.add_argument("--json", action="store_true", help="print the rows instead of the tables")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="instead: of a recorded service, in the Mooncake format"
    )
    own = parser.add_argument_group("instead: one fleet, the page's but for what is said")
    for field in fields(Load):
        own.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), metavar=str(field.default))
    own.add_argument("--first-gib", type=float, metavar=f"{FIRST_GIB:g}", help="of each host")
    own.add_argument("--second-gib", type=float, metavar=f"{SECOND_GIB:g}")
    arguments = parser.parse_args()
    seed, encode_s = arguments.seed, arguments.encode_s
    is_page = False
    if arguments.trace is not None:
        rows = list(of_trace(arguments.trace, seed, encode_s))
    else:
        try:
            yours = own_case(arguments)
        except ValueError as error:
            parser.error(str(error))
        is_page = yours is None
        every = cases(arguments.max_hosts) if yours is None else [yours]
        rows = [row for case in every for row in rows_of(case, case.outcomes(seed), seed, encode_s)]
    if arguments.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        return
    lines = list(table_lines(rows))
    if is_page:
        lines += ["", *rule_lines(rules(FIRST_LEVELS, seed))]
    print(*lines, sep="\n")


def own_case(arguments: argparse.Namespace) -> Case | None:
    """Return the fleet that the command line describes; None: it says nothing of one."""
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    load = {field.name: given[field.name] for field in fields(Load) if field.name in given}
    if not load and not {"first_gib", "second_gib"} & given.keys():
        return None
    second_gib = given.get("second_gib", SECOND_GIB)
    return Case("own", "yours", replace(BASE.load, **load), given.get("first_gib", FIRST_GIB), (second_gib,))


def of_trace(path: Path, seed: int, encode_s: float) -> Iterator[Row]:
    """Yield the rows of a recorded service, its blocks for pictures, spread over some hosts."""
    prompts = read_trace(path)
    for hosts in (1, 4, 16):
        for affinity in (0.9, 0.0):
            requests = recorded(prompts, hosts, affinity, seed)
            load = replace(
                BASE.load, hosts=hosts, affinity=affinity, images_per_s=len(requests.keys) / requests.length_s / hosts
            )
            name = f"recorded, {hosts} host{'s' * (hosts > 1)}, {1 - affinity:.0%} of later turns anywhere"
            case = Case("recorded", name, load)
            yield from rows_of(case, play(requests, hosts, case.first_gib, case.second_gib), seed, encode_s)


if __name__ == "__main__":
    main()
