"""Whose a segment is when its writer is dead, and who may remove it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from mmcached.cli.admin.shm_list import ORPHAN_S, list_segments, remove_segments
from mmcached.cli.serve.seat import Seat
from mmcached.shm.segment.ring_notes import remove_notes
from mmcached.shm.segment.segment import unlink
from mmcached.shm.stats.page import StatsPage, StatsPageWriter
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import RoleName
from tests.shm.rings import leave_ring, overwritten


def states(ring: RingAnnouncement) -> set[tuple[str, str]]:
    """Return states and run directories of the two segments of a ring."""
    names = ring.ctl_name, ring.data_name
    return {(entry.state, entry.run_dir) for entry in list_segments() if entry.name in names}


def remove(ring: RingAnnouncement, *, removes_all: bool = False) -> bool:
    """Return whether this ring was removed."""
    names = {ring.ctl_name, ring.data_name}
    removed = names & set(remove_segments(removes_all=removes_all))
    assert removed in (set(), names)
    return bool(removed)


def show_sign_of_life(run_dir: Path, age_s: float) -> None:
    """Leave the page of a service whose frontend was last seen so long ago."""
    page = RunDir(run_dir).stats_page
    StatsPage.create(page)
    StatsPageWriter(page, RoleName("frontend"), clock=lambda: time.monotonic_ns() - int(age_s * 1e9)).close()


def test_a_crashed_service_has_an_hour_to_come_back(run_dir: Path) -> None:
    ring = leave_ring(run_dir)
    assert states(ring) == {("orphaned", str(run_dir))}
    assert not remove(ring), "no page says since when"
    show_sign_of_life(run_dir, ORPHAN_S - 60)
    assert not remove(ring)
    show_sign_of_life(run_dir, ORPHAN_S + 1)
    assert remove(ring)
    assert states(ring) == set()


def test_all_takes_what_waits_for_a_service_but_not_from_one_that_runs(run_dir: Path) -> None:
    orphaned, kept = leave_ring(run_dir, "a"), leave_ring(run_dir, "b", is_kept=True)
    show_sign_of_life(run_dir, ORPHAN_S + 1)
    RunDir(run_dir).create()
    with Seat(RunDir(run_dir)):
        assert states(orphaned) == states(kept) == {("kept", str(run_dir))}
        assert not remove(orphaned, removes_all=True)
    assert states(kept) == {("kept", str(run_dir))}
    assert remove(orphaned)
    assert not remove(kept)
    assert remove(kept, removes_all=True)


@pytest.mark.parametrize("what", ["note", "directory"])
def test_without_a_note_it_is_garbage_and_still_says_where_it_came_from(tmp_path: Path, what: str) -> None:
    ring = leave_ring(tmp_path)
    remove_notes(tmp_path) if what == "note" else shutil.rmtree(tmp_path)
    assert states(ring) == {("dead", str(tmp_path))}
    assert remove(ring)


def test_another_version_is_shown_with_its_run_directory(run_dir: Path) -> None:
    ring = leave_ring(run_dir)
    try:
        with overwritten(ring.ctl_name) as words:
            words[1] += 1
        assert states(ring) == {("orphaned", str(run_dir))}
    finally:
        unlink(ring.data_name)
        unlink(ring.ctl_name)
