"""Attacks by clients that keep the rules in a hard life: processes that fork with views, and interrupted calls.

Each judges what it sees: a wrong byte, or a lease that does not come back, ends its process with `WRONG`.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from mmcached.client import Client
from mmcached.wire.errors import MmcachedError
from mmcached.wire.paths import RunDir

WRONG = 99
"""Exit status of an attack that has seen what may not be."""
ROUND_S = 3.0
MIB = 1 << 20
MAX_CHILD_S = 20
NUM_FILLERS = 48
NUM_KEYS = 60
INTERVAL_S = 370e-6


class Interrupt(BaseException):
    """What a signal handler raises."""


def inherited_views(run_dir: RunDir, rng: random.Random) -> None:
    """Fork with views, drop them, and have others' puts run over what they were; children read, die and fork."""
    value = rng.randrange(1, 256)
    tenant = f"parent {rng.random()}"
    client = Client(run_dir.path, timeout_s=5.0, tenant=tenant)
    writer = Client(run_dir.path, timeout_s=5.0, tenant="filler of inherited views")
    keys = [f"{index}" for index in range(rng.randrange(1, 4))]
    for key in keys:
        client.put(key, {"a": np.full(MIB, value, np.uint8)})
    hits = client.get_many(keys, view=True, tensors="numpy")
    views = [hit.record["a"] for hit in hits if hit is not None]  # one that was evicted meanwhile is a miss
    hits.clear()
    going, go = os.pipe()
    pids = []
    for _ in range(rng.randrange(1, 4)):
        seed = rng.getrandbits(30)
        if (pid := os.fork()) == 0:
            os.close(go)
            _be_child(views, value, going, random.Random(seed))
        pids.append(pid)
    os.close(going)
    if rng.random() < 0.3:
        client.close()
    views.clear()
    for key in keys:
        writer.drop(key, tenant=tenant)
    for index in range(NUM_FILLERS):  # more than the store holds
        writer.put(f"{rng.random()} {index}", {"a": np.zeros(4 * MIB, np.uint8)})
    if rng.random() < 0.3:
        os.kill(rng.choice(pids), signal.SIGKILL)
    os.close(go)
    for pid in pids:
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == WRONG:
            sys.exit(WRONG)
    client.close()
    writer.close()


def _be_child(views: list[Any], value: int, going: int, rng: random.Random) -> None:
    status = WRONG
    try:
        signal.alarm(MAX_CHILD_S)
        if rng.random() < 0.3:
            if os.fork() > 0:
                status = os.waitstatus_to_exitcode(os.wait()[1])
                return
            signal.alarm(MAX_CHILD_S)
        os.read(going, 1)  # until the parent closes it, or dies
        status = 0 if all((view == value).all() for view in views) else WRONG
    finally:
        os._exit(status)


def interrupted_calls(run_dir: RunDir, rng: random.Random) -> None:
    """Get under a storm of signals whose handler raises; afterwards no lease may be out."""
    tenant = f"interrupted {rng.random()}"
    is_on = False

    def interrupt(*_: object) -> None:
        nonlocal is_on
        if is_on:
            is_on = False
            raise Interrupt

    client = Client(run_dir.path, timeout_s=5.0, tenant=tenant)
    keys = [f"{index}" for index in range(NUM_KEYS)]
    for key in keys:
        client.put(key, {"a": np.full(4000, 3, np.uint8)})
    calls: list[Callable[[], object]] = [
        lambda: client.get(keys[0], view=True),
        lambda: client.get(keys[1]),
        lambda: client.get_many(keys, view=True),
        lambda: client.get_many(keys),
        lambda: client.get_or_compute(keys[2], lambda: {}, view=True),
    ]
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, INTERVAL_S, INTERVAL_S)
    end = time.monotonic() + ROUND_S
    while time.monotonic() < end:
        call = rng.choice(calls)
        try:
            is_on = True
            for _ in range(5):
                call()
            is_on = False
        except (Interrupt, MmcachedError):
            is_on = False
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.collect()
    client.get(keys[0])  # gives back what an interrupt has left
    session = client._calls.contact._sessions.present
    reader = None if session is None else session._reader
    if reader is not None and reader.taken_bytes:
        sys.exit(WRONG)
    client.close()


ATTACKS: dict[str, Callable[[RunDir, random.Random], None]] = {
    attack.__name__: attack for attack in (inherited_views, interrupted_calls)
}
