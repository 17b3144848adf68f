"""Runs chaos: a writer and readers in own processes, killed and stopped at random instants, every byte checked.

    python -m scripts.verification.chaos [--seconds 60] [--seed N] [--cast NAME]

    parent ── fork, reap ──> forker ──> writer, readers, layers    the parent alone kills, stops and continues them
       └──────── board: the phase, everybody's counters ────────┘  see `chaos_roles`

Readers find records and take leases by themselves, and a writer adopts the ring of the one before. What must hold,
whoever dies when: no payload under a lease changes; what was committed and not evicted is found after a restart, what
was flushed is not; when all come to rest, all leases are back; nobody ends but by a kill; nothing is left in /dev/shm.
A mutant is a cast without a rule of the ring, and the run has to find it.

A writer is killed every 2 s, a reader every 0.15 s, a layer, which lays records into a nursery, every 0.3 s; some are
stopped for up to a second, one layer each time the writer is killed. Every 8-byte word of each payload is checked when
it arrives and before it is let go.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from mmcached.shm import sweep
from mmcached.shm.segment import segment
from scripts.verification.chaos_casts import CASTS, MUTANTS
from scripts.verification.chaos_roles import Board, Count, Phase

NUM_READERS = 3
NUM_LAYERS = 2
READER_KILL_S = 0.15
LAYER_KILL_S = 0.3
WRITER_KILL_S = 2.0
STOP_S = (0.2, 1.0)
STOP_EVERY_S = 0.5
DEADLINE_S = 60.0
_ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class Report:
    """What one run has done and found.

    Attributes:
        totals: the counters of all lives together.
        leases_left, pinned_bytes_left: of the last ring, when all had come to rest.
        segments_left: of all rings of the run, after a sweep.
        num_rings: of the run.
        other_violations: a line each.
    """

    seconds: float
    seed: int
    reader_kills: int = 0
    layer_kills: int = 0
    writer_kills: int = 0
    stops: int = 0
    totals: dict[Count, int] = field(default_factory=lambda: dict.fromkeys(Count, 0))
    leases_left: int = 0
    pinned_bytes_left: int = 0
    segments_left: int = 0
    num_rings: int = 0
    other_violations: list[str] = field(default_factory=list)

    @property
    def corrupt_reads(self) -> int:
        return self.totals[Count.CORRUPT]

    @property
    def leases_verified(self) -> int:
        return self.totals[Count.VERIFIED]

    def violations(self) -> list[str]:
        """Return what must not be, each as a line; empty for a good run."""
        found = [
            (self.corrupt_reads, "corrupt reads"),
            (self.totals[Count.STALE], "reads of what had gone: leased chunks of another, or records flushed before"),
            (self.leases_left, "leases that never came back"),
            (self.pinned_bytes_left, "bytes pinned for nobody"),
            (self.segments_left, "shared-memory objects left"),
        ]
        lines = [f"{number} {what}" for number, what in found if number]
        if not self.leases_verified:
            lines.append("nothing was read at all")
        return lines + self.other_violations

    def rows(self) -> list[tuple[str, str]]:
        """Return the figures, each with its name."""
        totals = self.totals
        return [
            ("seconds, seed", f"{self.seconds:g}, {self.seed}"),
            ("kills: readers, writers, layers", f"{self.reader_kills}, {self.writer_kills}, {self.layer_kills}"),
            ("stops", f"{self.stops}"),
            ("puts, refused", f"{totals[Count.PUTS]}, {totals[Count.REFUSED]}"),
            ("drops, flushes", f"{totals[Count.DROPS]}, {totals[Count.FLUSHES]}"),
            ("laid in nurseries, copied", f"{totals[Count.LAID]}, {totals[Count.PROMOTED]}"),
            ("places refused, drained", f"{totals[Count.STALE_PLACES]}, {totals[Count.DRAINED]}"),
            ("entries taken, events of death", f"{totals[Count.ATTACHED]}, {totals[Count.DEATHS]}"),
            ("reads verified", f"{self.leases_verified}"),
            ("  of them copied", f"{totals[Count.COPIED]}"),
            ("misses", f"{totals[Count.MISSES]}"),
            ("rings made", f"{self.num_rings}"),
            ("records kept, found again", f"{totals[Count.KEPT]}, {totals[Count.FOUND]}"),
            ("corrupt reads", f"{self.corrupt_reads}"),
            ("stale reads", f"{totals[Count.STALE]}"),
            ("leases left, pinned bytes", f"{self.leases_left}, {self.pinned_bytes_left}"),
            ("segments left", f"{self.segments_left}"),
        ]


@dataclass(slots=True)
class Life:
    """One forked process."""

    number: int
    pid: int
    continue_at: float | None = None


class Forker:
    """The forking process, from the outside. Leaving the block ends it and all its children."""

    def __init__(self, run_dir: Path, cast: str) -> None:
        self._num_lives = 0
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "scripts.verification.chaos_forker", str(run_dir), cast],
            cwd=_ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def num_lives(self) -> int:
        return self._num_lives

    def fork(self, role: str, seed: int) -> Life:
        self._num_lives += 1
        return Life(self._num_lives, self._ask("fork", role, self._num_lives, seed))

    def kill(self, life: Life) -> int:
        """`kill -9`, then wait until the kernel has taken it apart; return the exit code."""
        os.kill(life.pid, signal.SIGKILL)
        return self.reap(life)

    def reap(self, life: Life) -> int:
        """Wait for a child that is about to end; return its exit code."""
        return self._ask("reap", life.pid)

    def _ask(self, *command: str | int) -> int:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps(command) + "\n")
        self._popen.stdin.flush()
        ready, _, _ = select.select([self._popen.stdout], [], [], DEADLINE_S)
        assert ready, f"no answer to {command} within {DEADLINE_S} s"
        return int(json.loads(self._popen.stdout.readline()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(DEADLINE_S)
        finally:
            self._popen.kill()
            self._popen.wait()
            self._popen.stdout.close()


class Chaos:
    """One run over one forker."""

    def __init__(self, forker: Forker, board: Board, report: Report) -> None:
        self._forker = forker
        self._board = board
        self._report = report
        self._random = random.Random(report.seed)
        self._writer = self._fork("writer")
        self._readers = [self._fork("reader") for _ in range(NUM_READERS)]
        self._layers = [self._fork("layer") for _ in range(NUM_LAYERS)]

    def rage(self, seconds: float) -> None:
        """Kill, stop and continue, each in its own rhythm."""
        start = now = time.monotonic()
        kill_reader_at, kill_writer_at, stop_at = now + READER_KILL_S, now + WRITER_KILL_S, now + STOP_EVERY_S
        kill_layer_at = now + LAYER_KILL_S
        while (now := time.monotonic()) < start + seconds:
            if now >= kill_reader_at:
                self._kill_one_of(self._readers, "reader")
                self._report.reader_kills += 1
                kill_reader_at = now + READER_KILL_S
            if now >= kill_layer_at:
                self._kill_one_of(self._layers, "layer")
                self._report.layer_kills += 1
                kill_layer_at = now + LAYER_KILL_S
            if now >= kill_writer_at:
                self._stop_one_of(self._layers, now)
                self._note_end(self._writer, self._forker.kill(self._writer), -signal.SIGKILL)
                self._writer = self._fork("writer")
                self._report.writer_kills += 1
                kill_writer_at = now + WRITER_KILL_S
            if now >= stop_at:
                self._stop_one_of(self._readers + self._layers, now)
                stop_at = now + self._random.random() * 2 * STOP_EVERY_S
            self._continue(now)
            select.select([], [], [], 0.005)
        self._continue(float("inf"))

    def rest(self) -> None:
        """Let all give back what they have; then end them, and count."""
        self._board.phase = Phase.REST
        deadline = time.monotonic() + DEADLINE_S / 3
        while not self._is_at_rest() and time.monotonic() < deadline:
            select.select([], [], [], 0.005)
        if not self._board.get(self._writer.number, Count.RESTS):
            self._report.other_violations.append("the last writer did not come to rest")
        self._report.leases_left = self._board.get(self._writer.number, Count.LEASES)
        self._report.pinned_bytes_left = self._board.get(self._writer.number, Count.PINNED_BYTES)
        self._board.phase = Phase.END
        for life in (self._writer, *self._readers, *self._layers):
            self._note_end(life, self._forker.reap(life), 0)

    def count(self) -> None:
        """Fill the report from the board."""
        for count in Count:
            self._report.totals[count] = self._board.total(count, self._forker.num_lives)
        for life in range(1, self._forker.num_lives + 1):
            kept, found = (self._board.get(life, count) for count in (Count.KEPT, Count.FOUND))
            if found < 0.95 * kept:  # the life before may have been killed between an eviction and its ledger
                self._report.other_violations.append(f"life {life} has found {found} of {kept} records again")

    def _kill_one_of(self, lives: list[Life], role: str) -> None:
        which = self._random.randrange(len(lives))
        self._note_end(lives[which], self._forker.kill(lives[which]), -signal.SIGKILL)
        lives[which] = self._fork(role)

    def _stop_one_of(self, lives: list[Life], now: float) -> None:
        life = self._random.choice(lives)
        if life.continue_at is None:
            os.kill(life.pid, signal.SIGSTOP)
            life.continue_at = now + self._random.uniform(*STOP_S)
            self._report.stops += 1

    def _continue(self, now: float) -> None:
        for life in self._readers + self._layers:
            if life.continue_at is not None and now >= life.continue_at:
                os.kill(life.pid, signal.SIGCONT)
                life.continue_at = None

    def _note_end(self, life: Life, code: int, expected: int) -> None:
        if code != expected:
            self._report.other_violations.append(f"life {life.number} ended by itself with {code}")

    def _is_at_rest(self) -> bool:
        # Both figures: a reader that gives back its last lease between them leaves bytes pinned, but no lease.
        number = self._writer.number
        left = [self._board.get(number, count) for count in (Count.LEASES, Count.PINNED_BYTES)]
        return self._board.get(number, Count.RESTS) > 0 and not any(left)

    def _fork(self, role: str) -> Life:
        return self._forker.fork(role, self._random.getrandbits(32))


def run(seconds: float, *, seed: int, run_dir: Path, cast: str) -> Report:
    """Let chaos reign for a while.

    Args:
        run_dir: an empty folder with a short path; its sockets and files stay.
        cast: the name of one of CASTS, or of a mutant.
    """
    report = Report(seconds, seed)
    with Board.create(run_dir / "board") as board, Forker(run_dir, cast) as forker:
        chaos = Chaos(forker, board, report)
        chaos.rage(seconds)
        chaos.rest()
        chaos.count()
    sweep()
    ring_ids = (run_dir / "rings").read_text().split()
    left = [name for name in segment.leftover_names(os.getuid()) if any(ring_id in name for ring_id in ring_ids)]
    report.segments_left = len(left)
    report.num_rings = len(set(ring_ids))
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description="chaos for the ring")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32), help="of who is killed and stopped when")
    parser.add_argument("--cast", choices=[*CASTS, *MUTANTS], help="play this one alone; with a mutant the run fails")
    options = parser.parse_args()
    reports = []
    for cast in [options.cast] if options.cast else CASTS:
        with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as folder:
            reports.append((cast, run(options.seconds, seed=options.seed, run_dir=Path(folder), cast=cast)))
    print(table(reports))
    violations = [f"VIOLATION, {cast}: {line}" for cast, report in reports for line in report.violations()]
    for violation in violations:
        print(violation)
    return 1 if violations else 0


def table(reports: list[tuple[str, Report]]) -> str:
    """Return one line per figure, with a column for each run."""
    columns = [[value for _, value in report.rows()] for _, report in reports]
    names = [name for name, _ in reports[0][1].rows()]
    lines = [("leases", *(cast for cast, _ in reports)), *zip(names, *columns, strict=True)]
    return "\n".join(f"{name:<32}" + "".join(f"{value:>28}" for value in values) for name, *values in lines)


if __name__ == "__main__":
    sys.exit(main())
