"""Starting, stopping and dying, with real processes: nobody is orphaned, nothing is left over, nothing wedges."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import AsyncClient, Client, Generation
from mmcached.wire.errors import MmcachedError, ServiceUnavailable
from tests.house import REPOSITORY
from tests.integration.processes import (
    DEADLINE_S,
    NUM_ROLE_CLIENTS,
    descendants,
    eventually,
    is_alive,
    leases_of,
    role_pids,
    segments_of,
    small_config,
    stats_of,
)

NUM_REQUESTS = 16
"""At once: seconds of decoding altogether, whenever each of them happens to meet the end token."""

VANISHING_CLIENT = """
import asyncio, sys
from mmcached.cli.serve.first_request import TINY_PNG
from mmcached.client import AsyncClient

async def ask():
    async with AsyncClient(sys.argv[1]) as client:
        prompts = [f"<image> go on and on {index}" for index in range(int(sys.argv[2]))]
        await asyncio.gather(*(client.generate(prompt, [TINY_PNG], max_tokens=4000) for prompt in prompts))

asyncio.run(ask())
"""


def test_client_that_is_killed_leaves_no_lease_and_no_request(lasting_service: ChildService) -> None:
    kill_a_client(lasting_service.run_dir, mode="shm")


def kill_a_client(run_dir: Path, *, mode: str) -> None:
    """Kill one that has requests open, and wait until they are gone; the next one is answered."""
    done_before = stats_of(run_dir).requests_done
    child = subprocess.Popen([sys.executable, "-c", VANISHING_CLIENT, str(run_dir), str(NUM_REQUESTS)])
    try:
        eventually(lambda: stats_of(run_dir).requests_open, lambda n: n > 0, "open requests")
        if mode == "shm":  # of the ring, or of the encoder's output in the store
            eventually(lambda: leases_of(stats_of(run_dir)), lambda n: n > 0, "leases of open requests")
    finally:
        child.kill()
        child.wait(DEADLINE_S)
    stats = eventually(
        lambda: stats_of(run_dir),
        lambda s: leases_of(s) == 0 and s.requests_open == 0 and s.engines[0].requests_running == 0,
        "leases and requests of a dead client",
    )
    assert stats.requests_done < done_before + NUM_REQUESTS, "they must be aborted, not merely finished"
    left = list((run_dir / "clients").iterdir())
    assert len(left) <= NUM_ROLE_CLIENTS, "the dead client's lock file is removed"
    with Client(run_dir) as client:
        assert client.generate("next", max_tokens=1).tokens


def test_sigterm_drains(run_dir: Path, tmp_path: Path) -> None:
    """Open requests are answered, new ones refused, the exit status is 0, and nothing of ours is left."""
    with ChildService(run_dir / "s", small_config(world_size=1), tmp_path / "config.json") as service:
        answers: list[Generation | BaseException] = []

        async def ask() -> None:
            async with AsyncClient(service.run_dir) as client:
                prompts = [f"a long answer, please: {index}" for index in range(NUM_REQUESTS)]
                calls = (client.generate(prompt, max_tokens=400) for prompt in prompts)
                answers.extend(await asyncio.gather(*calls, return_exceptions=True))

        # The second client is connected before the signal; whoever comes later may find no socket at all.
        with Client(service.run_dir) as second:
            thread = threading.Thread(target=lambda: asyncio.run(ask()))
            before = second.stats().requests_done
            thread.start()
            eventually(
                second.stats,
                lambda stats: (
                    stats.requests_open > 0 and stats.requests_open + stats.requests_done - before == NUM_REQUESTS
                ),
                "all requests admitted, some still open",
            )
            pids = descendants(service.process.pid)
            ring = segments_of(pids)
            service.process.send_signal(signal.SIGTERM)
            refusal = eventually(lambda: _refusal(second), lambda error: error is not None, "refusals while draining")
            assert isinstance(refusal, ServiceUnavailable)
            assert refusal.retryable
            thread.join(DEADLINE_S)
        status = service.stop()
    assert not thread.is_alive()
    assert [type(answer) for answer in answers] == [Generation] * NUM_REQUESTS
    assert status == 0
    assert not [pid for pid in pids if is_alive(pid)]
    assert len(ring) == 2, "two objects of the ring"
    assert not [path for path in ring if path.exists()]
    assert not list((run_dir / "s").glob("*.sock"))


def _refusal(client: Client) -> MmcachedError | None:
    try:
        client.generate("too late", max_tokens=1)
    except MmcachedError as error:
        return error
    return None


def test_kill_of_the_supervisor_leaves_no_orphan_and_the_next_start_cleans_up(run_dir: Path, tmp_path: Path) -> None:
    """What fits is adopted: `test_store_alone`."""
    first = ChildService(run_dir / "s", small_config(world_size=1), tmp_path / "config.json")
    first.wait_until_ready()
    pids = descendants(first.process.pid)
    assert len(pids) == 4, "frontend, engine, worker, and the decoder of the picture that said it was ready"
    ring = segments_of(pids)
    assert len(ring) == 2, "two objects of the ring"
    first.process.kill()
    first.stop()
    eventually(lambda: [pid for pid in pids if is_alive(pid)], lambda alive: not alive, "orphans")
    assert all(path.exists() for path in ring), "a killed writer cannot remove its ring"

    config = small_config(world_size=1, ring_num_slots=64)
    with ChildService(run_dir / "s", config, tmp_path / "config.json") as second:
        now = segments_of(descendants(second.process.pid))
        assert len(now) == 2
        assert not now & ring
        assert not [path for path in ring if path.exists()], "one of another size is swept"
        with Client(second.run_dir) as client:
            assert client.generate("hello again", max_tokens=1).tokens
        assert second.stop() == 0
    assert not [path for path in now if path.exists()]


def test_role_that_dies_too_often_is_given_up_with_status_1(run_dir: Path, tmp_path: Path) -> None:
    """Then nothing hangs, is orphaned or left over either."""
    config = small_config(world_size=0, max_restarts=1, restart_backoff_s=0.01)
    with ChildService(run_dir / "s", config, tmp_path / "config.json") as service:
        pids = descendants(service.process.pid)
        ring = segments_of(pids)
        (first,) = role_pids(service.process.pid)["frontend"]
        os.kill(first, signal.SIGKILL)
        (second,) = eventually(
            lambda: role_pids(service.process.pid)["frontend"], lambda now: now not in ([], [first]), "a new frontend"
        )
        os.kill(second, signal.SIGKILL)
        assert service.process.wait(DEADLINE_S) == 1
    assert not [pid for pid in (*pids, second) if is_alive(pid)]
    assert not [path for path in ring if path.exists()]


def test_a_signal_during_the_start_is_an_orderly_end(run_dir: Path) -> None:
    """Started by the launcher of a checkout, which is `mmcached serve` by another name."""
    launcher = str(REPOSITORY / "scripts" / "supervisor.py")
    command = [sys.executable, launcher, "--run-dir", str(run_dir / "s"), "--device", "cpu", "--workers", "1"]
    with (run_dir / "log").open("wb") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
        try:
            eventually(lambda: descendants(service.pid), lambda pids: len(pids) == 3, "all roles")
            pids = descendants(service.pid)
            service.send_signal(signal.SIGINT)
            assert service.wait(DEADLINE_S) == 0
        finally:
            service.kill()
            service.wait(DEADLINE_S)
    assert "not ready" not in (run_dir / "log").read_text()
    assert not [pid for pid in pids if is_alive(pid)]
    assert not list((run_dir / "s").glob("*.sock"))
