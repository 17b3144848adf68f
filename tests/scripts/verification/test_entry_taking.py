"""The model takes an entry as the product does: the same locks and words at each of its named instants."""

from __future__ import annotations

from unittest import mock

import numpy as np

from mmcached.shm.ring import reader_entry as product
from mmcached.shm.ring.reader_entry import ReaderEntry
from mmcached.wire.handle import RingAnnouncement
from scripts.verification.lease_between import UNIT, ByteLocks, Description, LockTable, ModelControl, SmallLayout
from scripts.verification.lease_engine import Stage, Taking

INCARNATION = 5
COUNT = 3
"""What the entry's former life has left in its cell."""
LAYOUT = SmallLayout(UNIT, 1, 2)


def test_the_same_locks_and_words_at_each_step() -> None:
    of_product = look_at_product()
    locks, control = control_of_an_engine()
    assert ByteLocks.try_exclusive(control.fd, ByteLocks.reader_byte(0))
    taking = Taking(epoch=1, reader_id=0, incarnation=INCARNATION)
    of_model = {taking.stage: (locks.key(), words_of(control))}
    while taking.stage is not Stage.SHARED:
        taking = taking.next(control)
        of_model[taking.stage] = (locks.key(), words_of(control))
    assert of_model == of_product


def look_at_product() -> dict[Stage, tuple[object, dict[str, int]]]:
    locks, control = control_of_an_engine()
    seen = {}
    stages = {"entry.after_lock": Stage.LOCKED, "entry.after_incarnation": Stage.NAMED}

    def look(label: str) -> None:
        if label in stages:
            seen[stages[label]] = (locks.key(), words_of(control))

    with (
        mock.patch.object(product, "locks", ByteLocks),
        mock.patch.object(product, "open_control", return_value=control),
        mock.patch.object(product, "crash_point", look),
    ):
        ReaderEntry.attach(RingAnnouncement(0, "0" * 32, 1, UNIT, 1, 2), lambda: INCARNATION)
    return seen | {Stage.SHARED: (locks.key(), words_of(control))}


def words_of(control: ModelControl) -> dict[str, int]:
    """Return what decides anything in entry 0; its pid is a help for people."""
    return {
        "incarnation": control.words[LAYOUT.incarnation_word(0)],
        "returned": control.words[LAYOUT.returned_word(0, 0)],
    }


def control_of_an_engine() -> tuple[LockTable, ModelControl]:
    locks, words = LockTable(), np.zeros(LAYOUT.ctl_bytes // 8, np.uint64)
    words[LAYOUT.returned_word(0, 0)] = COUNT
    return locks, ModelControl(words, LAYOUT, Description(locks, 1, "engine 1"))
