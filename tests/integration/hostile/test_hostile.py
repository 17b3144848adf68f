"""All attacks at once, for ten minutes, beside an honest client; `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mmcached.cli.demo.run import all_caches_off
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.config import ServiceConfig
from mmcached.wire.limits import LimitsConfig
from mmcached.wire.process.death import environment_for_children
from tests.integration.hostile.attacks import ATTACKS
from tests.integration.hostile.burden import MIB, Burden, sample
from tests.integration.hostile.client_lives import WRONG
from tests.integration.hostile.honest import MAX_TOKENS, PROMPTS, HonestClient, Record
from tests.integration.local_service import LocalService
from tests.integration.processes import small_config
from tests.integration.workloads import photo

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[3]
ATTACK_LIFE_S = 20.0
WATCH_INTERVAL_S = 0.5


def config() -> ServiceConfig:
    # Less than the attackers announce and send, so that the limit is reached.
    limits = LimitsConfig(min_shared_encode_ms=0, max_held_mb=128)
    return small_config(store_gb=1 / 8, mm_processor_cache_gb=1 / 8, http_port=0, max_restarts=0, limits=limits)


def known_answers(scratch: Path) -> list[list[int]]:
    with LocalService(scratch, all_caches_off(small_config(world_size=1))), Client(scratch) as client:
        return [client.generate(text, list(map(photo, photos)), MAX_TOKENS).tokens for text, photos in PROMPTS]


@contextmanager
def attacked_by(names: list[str], service: ChildService, seed: int, burdens: dict[str, Burden]) -> Iterator[None]:
    """Keep one process per attack alive, and sample what the roles take, in a thread of its own."""
    attackers = [
        Attacker(name, service.run_dir, seed, born=time.monotonic() - index % 7) for index, name in enumerate(names)
    ]
    is_over = threading.Event()

    def tend() -> None:
        while not is_over.wait(WATCH_INTERVAL_S):
            for attacker in attackers:
                attacker.tend(time.monotonic())
            sample(service.process.pid, burdens)

    watch = threading.Thread(target=tend)
    watch.start()
    try:
        yield
    finally:
        is_over.set()
        watch.join()
        for attacker in attackers:
            attacker.kill()
    wronged = [attacker.name for attacker in attackers if attacker.was_wronged]
    assert not wronged, "clients have seen wrong bytes, or lost leases"


class Attacker:
    """One attack, as a process that is replaced now and then: some of them stop themselves.

    Attributes:
        was_wronged: it has seen what no client that keeps the rules may see.
    """

    def __init__(self, name: str, run_dir: Path, seed: int, *, born: float) -> None:
        self._command = [sys.executable, "-m", "tests.integration.hostile.attacks", name, str(run_dir)]
        self._seed = seed
        self._born = born
        self.was_wronged = False
        self.name = name
        self._num_lives = 0
        self._process = self._start()

    def tend(self, now: float) -> None:
        self.was_wronged |= self._process.poll() == WRONG
        if self._process.returncode is not None or now >= self._born + ATTACK_LIFE_S:
            self.kill()
            self._born = now
            self._process = self._start()

    def kill(self) -> None:
        self._process.kill()  # a stopped one too
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self._num_lives += 1
        command = [*self._command, f"{self._seed} {self._num_lives}"]
        return subprocess.Popen(command, cwd=ROOT, env=environment_for_children(), stderr=subprocess.DEVNULL)


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
        stack.enter_context(attacked_by(names, service, draw_seeds(1)[0], burdens))
        attacked = play(service, tokens, seconds)
    print(attacked, burdens)
    for name, record in attacked.items():
        assert record.num_answered, f"{name}: never answered: {Counter(record.failures)}"
        num_calls = record.num_answered + len(record.failures)
        assert len(record.failures) <= 0.01 * num_calls, f"{name}: {Counter(record.failures)} of {num_calls}"
    for role, burden in burdens.items():
        assert len(burden.pids) == 1, f"{role} was restarted: {burden.pids}"
        early, late = burden.early_and_late(burden.rss)
        # What has arrived of unfinished messages is held up to a limit, sooner or later.
        held_bytes = config().limits.max_held_mb * MIB if role.startswith("frontend") else 0
        assert late <= max(early * 1.1, held_bytes) + 32 * MIB, f"{role}: memory grows"
        early, late = burden.early_and_late(burden.fds)
        assert late <= early + 64, f"{role}: descriptors grow"


def play(service: ChildService, tokens: list[list[int]], seconds: float) -> dict[str, Record]:
    """Let an honest client play for so long; return what it met."""
    honest = HonestClient(service.run_dir, tokens, seed=1)
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            honest.play()
    finally:
        honest.close()
    return honest.records
