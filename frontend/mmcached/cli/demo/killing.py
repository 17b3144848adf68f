"""Kills the frontend in the middle, and counts what is found meanwhile and afterwards.

Records lie in the store, in shared memory: a client finds them while there is no frontend, and the next one takes them
over.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmcached.client import Client
from mmcached.shm.stats.page import StatsPageReader
from mmcached.wire.errors import DeadlineExceeded, MmcachedError
from mmcached.wire.paths import RunDir

if TYPE_CHECKING:
    import torch

DEADLINE_S = 30.0
PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class Survival:
    """How many of the records were found with all their bytes.

    Attributes:
        seconds: until another frontend took a record.
    """

    num_records: int
    while_dead: int
    afterwards: int
    seconds: float

    @property
    def is_whole(self) -> bool:
        return self.while_dead == self.afterwards == self.num_records


def kill_frontend(run_dir: Path, embeddings: Sequence[torch.Tensor]) -> Survival:
    """Put embeddings into the store, kill the frontend, and look for them before and after the next one is there.

    Raises:
        DeadlineExceeded: no frontend came.
    """
    records = {f"photograph {index}": embedding for index, embedding in enumerate(embeddings)}
    with Client(run_dir) as client:
        for key, embedding in records.items():
            client.put(key, {"embedding": embedding})
        os.kill(_frontend_pid(run_dir), signal.SIGKILL)
        killed = time.monotonic()
        while_dead = _num_found(client, records)
        while not _takes_records(client):
            if time.monotonic() - killed > DEADLINE_S:
                raise DeadlineExceeded("the next frontend", DEADLINE_S)
            time.sleep(PAUSE_S)
        seconds = time.monotonic() - killed
        return Survival(len(records), while_dead, _num_found(client, records), seconds)


def _frontend_pid(run_dir: Path) -> int:
    with StatsPageReader(RunDir(run_dir).stats_page) as reader:
        return next(snapshot.pid for role, snapshot in reader.read().items() if role.kind == "frontend")


def _num_found(client: Client, records: dict[str, torch.Tensor]) -> int:
    hits = client.get_many(list(records), view=True)
    found = zip(hits, records.values(), strict=True)
    return sum(hit is not None and bool((hit.record["embedding"] == wanted).all()) for hit, wanted in found)


def _takes_records(client: Client) -> bool:
    try:
        return client.put("after the kill", {})
    except MmcachedError:
        return False
