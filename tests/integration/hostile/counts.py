"""The attack on a ring's counts: a client that falsifies its own, and lives on."""

from __future__ import annotations

import os
import random
import time

import numpy as np

from mmcached.client import Client
from mmcached.shm.segment.layout import PID_WORD, Layout
from mmcached.shm.segment.mapped import SHM_DIR, layout_of
from mmcached.shm.segment.ring_notes import read_note
from mmcached.wire.paths import RunDir
from tests.shm.rings import overwritten

LIFE_S = 10.0


def false_counts(run_dir: RunDir, rng: random.Random) -> None:
    """Hold a lease, write into the counts of the own entry what cannot be, and go on living."""
    with Client(run_dir.path, timeout_s=5.0, tenant="liar") as client:
        client.put("own", {"a": np.zeros(10_000, np.uint8)})
        held, note = client.get("own", view=True), read_note(run_dir.path, "store")
        if held is None or note is None:
            return
        layout = layout_of(note.ring)
        with overwritten(note.ring.ctl_name) as words:
            for reader_id in own_entries(note.ring.ctl_name, layout):
                for _ in range(rng.randrange(1, 4)):
                    falsify(words, layout, reader_id, rng)
        time.sleep(LIFE_S)


def falsify(words: memoryview, layout: Layout, reader_id: int, rng: random.Random) -> None:
    """Change one count, mostly by little."""
    slot = rng.randrange(layout.num_slots if rng.random() < 0.2 else 64)
    word = rng.choice([layout.returned_word, layout.taken_word])(reader_id, slot)
    change = rng.choice([1, 5, -1, rng.getrandbits(63)])
    words[word] = (words[word] + change) % (1 << 64)


def own_entries(ctl_name: str, layout: Layout) -> list[int]:
    """Return the entries that this process has taken; looked at without giving memory to those that nobody has."""
    fd = os.open(SHM_DIR / ctl_name.lstrip("/"), os.O_RDONLY)
    try:
        pids = [
            int.from_bytes(os.pread(fd, 8, 8 * (layout.incarnation_word(reader_id) + PID_WORD)), "little")
            for reader_id in range(layout.max_readers)
        ]
    finally:
        os.close(fd)
    return [reader_id for reader_id, pid in enumerate(pids) if pid == os.getpid()]
