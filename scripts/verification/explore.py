"""Look at every state of the lease protocol, with the product's own classes, and then at every mutant of them.

    python -m scripts.verification.explore                        everything: minutes
    python -m scripts.verification.explore --scenario kill        only scenarios and mutants with this in their name
    python -m scripts.verification.explore --limit 50000          stop each after so many states

A violation is printed with the shortest way to it. The exit status is 1 if the protocol itself breaks an invariant, or
if a mutant was not found out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from scripts.verification import (
    segment_mutants,
    segment_scenarios,
    segment_world,
    self_lease_scenarios,
    self_lease_world,
)
from scripts.verification.explorer import Finding
from scripts.verification.mutants import Mutant

Scenario = self_lease_world.Scenario | segment_world.Scenario
Case = Scenario | Mutant[self_lease_world.Scenario] | Mutant[segment_world.Scenario]
CASES: tuple[Case, ...] = (
    *self_lease_scenarios.SMALL,
    *self_lease_scenarios.LARGE,
    *self_lease_scenarios.MUTANTS,
    *segment_scenarios.SMALL,
    *segment_scenarios.LARGE,
    *segment_mutants.MUTANTS,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=int, metavar="N", help="stop each exploration after N states")
    parser.add_argument("--scenario", default="", metavar="NAME", help="only those with this in their name")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.scenario in case.name]
    if not chosen:
        parser.error(f"nothing has {options.scenario!r} in its name")
    table = Table("", "scenario", "states", "events", "seconds", "finding")
    console = Console(width=None if sys.stdout.isatty() else 140)
    are_all_right = True
    for case, finding in explored(chosen, options.limit, console):
        is_right = as_expected(case, finding)
        are_all_right &= is_right
        kind = "mutant" if isinstance(case, Mutant) else "protocol"
        numbers = (f"{finding.num_states:,}", f"{finding.num_events:,}", f"{finding.seconds:.1f}")
        table.add_row(kind, case.name, *numbers, outcome(finding), style=None if is_right else "bold red")
    console.print(table)
    return 0 if are_all_right else 1


def explored(cases: list[Case], limit: int | None, console: Console) -> Iterator[tuple[Case, Finding]]:
    """Explore one after the other; print each trace as soon as it is known."""
    for case in cases:
        scenario: Scenario = case.subject if isinstance(case, Mutant) else case
        finding = scenario.explore(limit=limit)
        if finding.violation is not None:
            console.print(f"[bold]{case.name}[/]: {finding.violation}")
            for number, event in enumerate(finding.trace, start=1):
                console.print(f"  {number:2} {event}", markup=False, highlight=False)
        yield case, finding


def as_expected(case: Case, finding: Finding) -> bool:
    """Return whether the protocol is right, as far as was looked, or the mutant breaks what it should."""
    if isinstance(case, Mutant):
        return finding.violation is not None and finding.violation.startswith(case.breaks)
    return finding.violation is None


def outcome(finding: Finding) -> str:
    if finding.violation is not None:
        return f"{finding.violation.partition(':')[0]} after {len(finding.trace)} events"
    return "every state is right" if finding.is_exhausted else "right as far as was looked"


if __name__ == "__main__":
    sys.exit(main())
