"""The sidecar's verbs between real processes: one computes, others wait; owners, clients and P0 are killed."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.client import Claim, Client, Hit, Pending
from mmcached.wire.errors import MmcachedError
from tests.integration import sidecar_child
from tests.integration.json_child import JsonChild, crowd
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import DEADLINE_S, eventually, small_config
from tests.present import present

NUM_PROCESSES = 8
EXAMPLES = Path(__file__).parents[2] / "examples"
CHILD = Path(sidecar_child.__file__)


def child_of(role: str, run_dir: Path, number: int) -> JsonChild:
    return JsonChild(CHILD, role, run_dir, number)


@contextlib.contextmanager
def children(role: str, run_dir: Path, count: int) -> Iterator[list[JsonChild]]:
    with crowd(lambda number: child_of(role, run_dir, number - 1), count) as started:
        yield started.children


@pytest.fixture
def frontend(run_dir: Path) -> Iterator[LoneFrontend]:
    with LoneFrontend(run_dir, small_config(store_gb=1 / 64, store_max_object_mb=8)) as running:
        yield running


def test_many_processes_compute_one_key_once(frontend: LoneFrontend, run_dir: Path) -> None:
    with children("compute", run_dir, NUM_PROCESSES) as processes:
        for child in processes:
            child.tell()
        # All ask, one computes, and it goes on only when all others wait.
        eventually(lambda: frontend.stats().store.waiting, lambda count: count == NUM_PROCESSES - 1, "waiting")
        for child in processes:
            child.tell()
        heard = []
        for child in processes:
            first = child.hear()
            heard.append((first, child.hear() if "computing" in first else first))
            child.close_input()
            assert child.process.wait(DEADLINE_S) == 0
    (owner,) = [first["computing"] for first, _ in heard if "computing" in first]
    wanted = sidecar_child.record_of(owner)
    assert {(last["number"], last["sum"]) for _, last in heard} == {(owner, int(wanted["x"].sum() % (1 << 40)))}
    assert frontend.at_rest().store.claims == 1


def test_a_killed_owner_is_replaced(frontend: LoneFrontend, run_dir: Path) -> None:
    with children("compute", run_dir, 3) as processes:
        first, second, third = processes
        first.tell()
        assert first.hear() == {"computing": 0}
        second.tell()
        third.tell()
        eventually(lambda: frontend.stats().store.waiting, lambda count: count == 2, "waiting")
        first.kill()
        eventually(lambda: frontend.stats().store.claims, lambda count: count == 2, "a second owner")
        for child in (second, third):
            child.tell()
        heard = [child.hear() for child in (second, third)]
        owner = next(each["computing"] for each in heard if "computing" in each)
        results = [
            child.hear() if "computing" in each else each for child, each in zip(processes[1:], heard, strict=True)
        ]
        assert [each["number"] for each in results] == [owner, owner]
    frontend.at_rest()


def test_one_process_claims_another_puts_and_a_lease_outlives_its_key_and_its_frontend(
    frontend: LoneFrontend, run_dir: Path
) -> None:
    with (
        Client(run_dir) as client,
        children("hold", run_dir, 1) as (scheduler,),
        children("fulfil", run_dir, 1) as (worker,),
    ):
        client.put("held", sidecar_child.record_of(5))
        scheduler.tell()
        held = scheduler.hear()
        assert held["claim"]
        assert isinstance(client.claim_many(["claimed"])[0], Pending)
        worker.tell()
        assert worker.hear() == {"stored": True}
        assert isinstance(client.claim_many(["claimed"])[0], Hit)
        client.drop("held")
        assert client.get("held") is None
        frontend.kill()
        opened = present(client.open(held["token"], view=True, tensors="numpy"))
        frontend.start()  # and adopts the ring
        scheduler.kill()
        assert np.array_equal(opened.record["x"], sidecar_child.record_of(5)["x"])


def test_a_killed_claimer_is_replaced_and_what_it_held_is_never_mistaken(frontend: LoneFrontend, run_dir: Path) -> None:
    with Client(run_dir) as client, children("hold", run_dir, 1) as (scheduler,):
        client.put("held", sidecar_child.record_of(5))
        scheduler.tell()
        token = scheduler.hear()["token"]
        assert isinstance(client.claim_many(["claimed"])[0], Pending)
        scheduler.kill()
        eventually(
            lambda: client.claim_many(["claimed"])[0], lambda found: isinstance(found, Claim), "the claim passes on"
        )
        client.drop("held")
        for number in range(200):
            client.put(f"other{number}", sidecar_child.record_of(number))
        assert client.open(token) is None
    frontend.at_rest()


def test_kill_of_p0_in_the_middle_of_everything(frontend: LoneFrontend, run_dir: Path) -> None:
    """Clients go on asking while P0 is killed and started again: right bytes or a miss, and then hits again."""
    stop = threading.Event()
    problems: list[str] = []
    hits = [0] * 3

    def ask(which: int) -> None:
        rng = random.Random(which)
        with Client(run_dir) as client:
            views: list[tuple[int, Any]] = []
            while not stop.is_set():
                number = rng.randrange(8)
                record = client.get_or_compute(
                    f"k{number}",
                    partial(sidecar_child.record_of, number),
                    view=True,
                    tensors="numpy",
                )
                views = [*views[-5:], (number, record["x"])]
                hits[which] = client.store_counters().hits
                for held, array in views:
                    if not np.array_equal(array, sidecar_child.record_of(held)["x"]):
                        problems.append(f"key {held} has wrong bytes")

    def guarded(which: int) -> None:
        try:
            ask(which)
        except BaseException as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=guarded, args=(which,)) for which in range(len(hits))]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: hits, lambda now: min(now) > 0, "hits")
        frontend.kill()
        before = list(hits)
        frontend.start()
        eventually(lambda: hits, lambda now: all(a > b for a, b in zip(now, before, strict=True)), "hits again")
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert problems == []
    frontend.at_rest()


def test_hits_need_no_p0_that_runs(frontend: LoneFrontend, run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as client:
        client.put("k", {"x": np.arange(100_000)})
        assert client.get("k") is not None
        frontend.process.send_signal(signal.SIGSTOP)
        try:
            for view in (False, True):
                hits = client.get_many(["k", "missing"], view=view, tensors="numpy")
                assert [hit is not None for hit in hits] == [True, False]
                assert hits[0] is not None
                assert hits[0].record["x"][-1] == 99_999
            assert client.contains_many(["k", "missing"]) == [True, False]
            assert client.get_or_compute("k", dict[str, Any], tensors="numpy")["x"][-1] == 99_999
            del hits
        finally:
            frontend.process.send_signal(signal.SIGCONT)
        assert eventually(frontend.stats, lambda now: now.store.hits == 4, "hits are counted").store.queries == 6
    frontend.at_rest()


def test_strict_clients_hear_of_a_killed_p0_and_their_hits_go_on(frontend: LoneFrontend, run_dir: Path) -> None:
    with Client(run_dir, fail_open=False) as client:
        client.put("k", {"x": 1})
        frontend.kill()
        for verb in (partial(client.drop, timeout_s=0.2), lambda key: client.put(key, {}, timeout_s=0.2)):
            hit = present(client.get("k"))
            assert hit.record == {"x": 1}
            assert client.contains_many(["k", "l"]) == [True, False]
            with pytest.raises(MmcachedError) as caught:
                verb("k")
            assert caught.value.retryable
        frontend.start()

        def put() -> bool:
            with contextlib.suppress(MmcachedError):
                return bool(client.put("k", {"x": 2}))
            return False

        eventually(put, bool, "it works again by itself")


def mixed_traffic(frontend: LoneFrontend, run_dir: Path, *, min_kills: int, duration_s: float) -> None:
    """Kill and replace clients at random while eight of them do everything at once; at least so often and so long, and
    until the store has been full.
    """
    until = time.monotonic() + duration_s
    with crowd(partial(child_of, "traffic", run_dir), 8) as clients:
        while (
            clients.num_started < 8 + min_kills or time.monotonic() < until or not frontend.stats().store.ring.evictions
        ):
            clients.kill_one()
        counts = clients.end()
    assert counts["failures"] == 0
    assert counts["calls"] > 0
    store = frontend.at_rest().store
    assert min(store.hits, store.ring.evictions) > 0, "a full store, and hits in it"


def test_two_vision_servers_compute_each_image_once(frontend: LoneFrontend, run_dir: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "two_servers.py"), str(run_dir)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    first, second = run.stdout.splitlines()
    assert first == "the answers are equal: True"
    assert re.fullmatch(r"towers run: \d \+ \d = 8 for 8 images", second), second
    frontend.at_rest()


@pytest.mark.slow
def test_eight_clients_with_kills(frontend: LoneFrontend, run_dir: Path) -> None:
    mixed_traffic(frontend, run_dir, min_kills=3, duration_s=0.0)


@pytest.mark.soak
def test_eight_clients_with_kills_for_a_minute(frontend: LoneFrontend, run_dir: Path) -> None:
    mixed_traffic(frontend, run_dir, min_kills=20, duration_s=60.0)
