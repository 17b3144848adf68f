"""Attacks by clients on their own nurseries: what they have put there they cut off, overwrite, and never finish."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.client import Client
from mmcached.client.store.session import StoreSession
from mmcached.shm import EncodedRecord
from mmcached.wire.errors import SegmentError
from mmcached.wire.paths import RunDir

ROUND_S = 3.0
MIB = 1 << 20
NUM_RECORDS = 6


def _refuse(*_: Any) -> None:
    raise SegmentError("an attacker that maps nothing gets frames")


@contextlib.contextmanager
def _spoiled(path: Path, rng: random.Random) -> Iterator[None]:
    """Cut a file short, make it longer and write into it, again and again in a thread."""
    is_over = threading.Event()
    with path.open("r+b") as file:
        nbytes = path.stat().st_size

        def spoil() -> None:
            while not is_over.is_set():
                cut = rng.randrange(nbytes)
                os.ftruncate(file.fileno(), cut)
                os.ftruncate(file.fileno(), nbytes + rng.randrange(2) * MIB)
                os.pwrite(file.fileno(), rng.randbytes(64), cut)

        thread = threading.Thread(target=spoil)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def spoiled_nursery(run_dir: RunDir, rng: random.Random) -> None:
    """Spoil what was put, while it is sent as frames and copied into the ring; then put it again."""
    StoreSession._become_reader = _refuse  # type: ignore[method-assign, assignment]
    with Client(run_dir.path, timeout_s=5.0, tenant=f"spoiler {rng.random()}") as client:
        end = time.monotonic() + ROUND_S
        while time.monotonic() < end:
            for number in range(NUM_RECORDS):
                client.put(f"{number}", {"a": np.full(MIB, 1, np.uint8)}, overwrite=True)
            contact = client._calls.contact
            ring, number = contact.welcome and contact.welcome.store_ring, contact._sessions.nurseries.number
            if ring and number:
                with _spoiled(Path("/dev/shm") / ring.nursery_name(number).lstrip("/"), rng):
                    for _ in range(10):
                        client.get_many([f"{number}" for number in range(NUM_RECORDS)])


def unfinished_fill(run_dir: RunDir, rng: random.Random) -> None:
    """Be stopped, or killed, in the middle of a fill; who watches starts another one later."""
    write, number = EncodedRecord.write_into, rng.randrange(4)

    def write_half(self: EncodedRecord, buffer: Any) -> None:
        nonlocal number
        number -= 1
        if number < 0:
            buffer[: len(buffer) // 2] = 0xEE
            os.kill(os.getpid(), rng.choice((signal.SIGSTOP, signal.SIGKILL)))
        write(self, buffer)

    EncodedRecord.write_into = write_half  # type: ignore[method-assign]
    with Client(run_dir.path, timeout_s=5.0, tenant=f"unfinished {rng.random()}") as client:
        for key in range(8):
            client.put(f"{key}", {"a": np.full(MIB, 2, np.uint8)})


ATTACKS: dict[str, Callable[[RunDir, random.Random], None]] = {
    attack.__name__: attack for attack in (spoiled_nursery, unfinished_fill)
}
"""Each in processes of its own: they change what the client's classes do."""
