"""Kill and stop the writer and the readers of a ring at random for a while; exit with 1 if anything was wrong.

A writer is killed every 2 s, a reader every 0.15 s, some are stopped for up to a second; every 8-byte word of each
payload is checked when it arrives and before it is let go. With `--mutant` a rule of the ring is taken away, and the
run has to find it. The machinery is the tests' own, so this runs in a checkout.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where `tests` is

from tests.shm.chaos import run
from tests.shm.chaos_mutants import MUTANTS


def main() -> int:
    parser = argparse.ArgumentParser(description="chaos for the ring")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of who is killed and stopped when")
    parser.add_argument("--mutant", choices=MUTANTS, help="take this rule away; then the run has to fail")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as folder:
        report = run(options.seconds, seed=options.seed, run_dir=Path(folder), mutant=options.mutant)
    print(report.table())
    for violation in report.violations():
        print(f"VIOLATION: {violation}")
    return 1 if report.violations() else 0


if __name__ == "__main__":
    sys.exit(main())
