"""Kills the frontend, then all engines, and counts the records found meanwhile and afterwards.

Records lie in the store, in shared memory: a client finds them without a frontend, and the next frontend adopts them.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmcached.client import Client
from mmcached.shm.stats.page import StatsPageReader
from mmcached.wire.errors import DeadlineExceeded, MmcachedError
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName

if TYPE_CHECKING:
    import torch

DEADLINE_S = 600.0
"""Deadline of the next frontend and engines, which take 1 s and 4 s on two idle cores."""
CALL_S = 1.0
PAUSE_S = 0.02
FRONTEND = RoleName("frontend")


@dataclass(frozen=True, slots=True)
class Survival:
    """The number of records found with all their bytes, during and after the frontend's death.

    Attributes:
        seconds: Time until the next frontend answered.
    """

    num_records: int
    while_dead: int
    afterwards: int
    seconds: float

    @property
    def is_whole(self) -> bool:
        return self.while_dead == self.afterwards == self.num_records


def kill_frontend(run_dir: Path, embeddings: Sequence[torch.Tensor]) -> Survival:
    """Put embeddings, kill the frontend, and look them up before and after the next one is there, or raise
    DeadlineExceeded.
    """
    records = {f"photograph {index}": embedding for index, embedding in enumerate(embeddings)}
    with Client(run_dir) as client:
        for key, embedding in records.items():
            client.put(key, {"embedding": embedding})
        os.kill(_pid(run_dir, FRONTEND), signal.SIGKILL)
        killed = time.monotonic()
        while_dead = _num_found(client, records)
        _wait(lambda: _num_ready(client) is not None, "the next frontend")
        seconds = time.monotonic() - killed
        return Survival(len(records), while_dead, _num_found(client, records), seconds)


def kill_engines(run_dir: Path, num_engines: int) -> float:
    """Kill all engines; return the seconds until as many others are ready, or raise DeadlineExceeded."""
    roles = [RoleName("engine", index) for index in range(num_engines)]
    victims = {_pid(run_dir, role) for role in roles}
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    with Client(run_dir) as client:
        _wait(lambda: victims.isdisjoint(_pid(run_dir, role) for role in roles), "the next engines")
        _wait(lambda: _num_ready(client) == num_engines, "the next engines")
    return time.monotonic() - killed


def _pid(run_dir: Path, role: RoleName) -> int:
    with StatsPageReader(RunDir(run_dir).stats_page) as reader:
        return reader.read()[role].pid


def _num_found(client: Client, records: dict[str, torch.Tensor]) -> int:
    hits = client.get_many(list(records), view=True)
    found = zip(hits, records.values(), strict=True)
    return sum(hit is not None and bool((hit.record["embedding"] == wanted).all()) for hit, wanted in found)


def _num_ready(client: Client) -> int | None:
    """Return the number of ready engines; None without a frontend."""
    try:
        return len(client.stats(timeout_s=CALL_S).engines)
    except MmcachedError:
        return None


def _wait(is_there: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not is_there():
        if time.monotonic() > give_up:
            raise DeadlineExceeded(what, DEADLINE_S)
        time.sleep(PAUSE_S)
