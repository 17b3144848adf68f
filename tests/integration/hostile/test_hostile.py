"""All attacks at once, for ten minutes, beside an honest client; `make soak`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from mmcached.cli.child_service import ChildService
from mmcached.cli.demo.run import all_caches_off
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.death import environment_for_children
from tests.integration.hostile.attacks import ATTACKS
from tests.integration.hostile.burden import MIB, Burden, sample
from tests.integration.hostile.honest import MAX_TOKENS, PROMPTS, HonestClient, Record
from tests.integration.local_service import LocalService
from tests.integration.processes import small_config
from tests.integration.workloads import photo

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[3]
QUIET_ROUNDS = 60
ATTACK_LIFE_S = 20.0
"""An attacker is killed and replaced that often: some of them stop themselves."""


def config() -> ServiceConfig:
    return small_config(store_gb=1 / 8, mm_processor_cache_gb=1 / 8, http_port=0, max_restarts=0)


def known_answers(scratch: Path) -> list[list[int]]:
    with LocalService(scratch, all_caches_off(small_config(world_size=1))), Client(scratch) as client:
        return [client.generate(text, list(map(photo, photos)), MAX_TOKENS).tokens for text, photos in PROMPTS]


@contextmanager
def attackers(run_dir: Path, names: list[str], seed: int) -> Iterator[Callable[[float], None]]:
    """Start one process per attack; call what this gives with the time now and then, and it replaces the old ones."""
    living: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    lives = Counter[str]()

    def tend(now: float) -> None:
        for index, name in enumerate(names):
            attacker, born = living.get(name, (None, 0.0))
            if attacker is not None and attacker.poll() is None and now < born + ATTACK_LIFE_S:
                continue
            if attacker is not None:
                attacker.kill()
                attacker.wait()
            lives[name] += 1
            command = [sys.executable, "-m", "tests.integration.hostile.attacks", name, str(run_dir)]
            living[name] = (
                subprocess.Popen(
                    [*command, f"{seed} {lives[name]}"],
                    cwd=ROOT,
                    env=environment_for_children(),
                    stderr=subprocess.DEVNULL,
                ),
                now - index % 5,  # not all of them at once
            )

    try:
        yield tend
    finally:
        for attacker, _ in living.values():
            with suppress(ProcessLookupError):
                os.kill(attacker.pid, signal.SIGKILL)
            attacker.wait()


def remove_planted_names() -> None:
    for path in Path("/dev/shm").glob(f"mmc.{os.getuid()}.*"):
        if path.lstat().st_uid != os.getuid():
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_an_honest_client_is_served_under_every_attack_at_once(
    run_dir: Path, tmp_path: Path, request: pytest.FixtureRequest, draw_seeds: Callable[[int], range]
) -> None:
    seconds = float(request.config.getoption("hostile_seconds"))
    chosen = request.config.getoption("hostile_attacks")
    names = [name for name in ATTACKS if not chosen or any(word in name for word in chosen.split(","))]
    tokens = known_answers(run_dir)
    burdens: dict[str, Burden] = {}
    with ExitStack() as stack:
        stack.callback(remove_planted_names)
        service = stack.enter_context(ChildService(run_dir / "s", config(), tmp_path / "config.json"))
        quiet = play(service, tokens, rounds=QUIET_ROUNDS)
        tend = stack.enter_context(attackers(service.run_dir, names, draw_seeds(1)[0]))
        attacked = play(service, tokens, seconds=seconds, tend=tend, burdens=burdens)
    print_table(quiet, attacked, burdens)
    for name, record in attacked.items():
        assert record.seconds, f"{name}: never answered: {Counter(record.failures)}"
        num_calls = len(record.seconds) + len(record.failures)
        assert len(record.failures) <= 0.01 * num_calls, f"{name}: {Counter(record.failures)} of {num_calls}"
    for role, burden in burdens.items():
        assert len(burden.pids) == 1, f"{role} was restarted: {burden.pids}"
        early, late = burden.early_and_late(burden.rss)
        assert late <= early * 1.1 + 32 * MIB, f"{role}: memory grows"
        early, late = burden.early_and_late(burden.fds)
        assert late <= early + 64, f"{role}: descriptors grow"


def play(
    service: ChildService,
    tokens: list[list[int]],
    *,
    rounds: int | None = None,
    seconds: float = 0.0,
    tend: Callable[[float], None] = lambda now: None,
    burdens: dict[str, Burden] | None = None,
) -> dict[str, Record]:
    """Let an honest client play so many rounds, or so long; return what it met."""
    honest = HonestClient(service.run_dir, tokens, seed=1)
    begin = next_sample = time.monotonic()
    try:
        played = 0
        while played < rounds if rounds is not None else time.monotonic() < begin + seconds:
            now = time.monotonic()
            tend(now)
            honest.play()
            played += 1
            if burdens is not None and now >= next_sample:
                next_sample = now + 1.0
                sample(service.process.pid, burdens)
    finally:
        honest.close()
    return honest.records


def print_table(quiet: dict[str, Record], attacked: dict[str, Record], burdens: dict[str, Burden]) -> None:
    for name, record in attacked.items():
        before = quiet[name]
        print(
            f"{name:15} quiet p50 {before.median * 1e3:8.2f} ms p99 {before.quantile(0.99) * 1e3:8.2f} ms | attacked"
            f" p50 {record.median * 1e3:8.2f} ms p99 {record.quantile(0.99) * 1e3:8.2f} ms"
            f" of {len(record.seconds)}, failed {dict(Counter(record.failures))}"
        )
    for role, burden in sorted(burdens.items()):
        early, late, peak = (nbytes / MIB for nbytes in (*burden.early_and_late(burden.rss), max(burden.rss)))
        first, last = burden.early_and_late(burden.fds)
        print(
            f"{role:15} anonymous memory {early:7.1f} -> {late:7.1f} MiB (peak {peak:7.1f}),"
            f" descriptors {first:.0f} -> {last:.0f} (peak {max(burden.fds)}), processes {len(burden.pids)}"
        )
