"""A frontend is killed, and its successor goes on with its store: no hit is missed meanwhile, none after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mmcached.client import Client
from mmcached.shm.ring.slot_table import FIRST_KEY, SECOND_KEY
from mmcached.shm.segment.layout import SLOT_WORDS
from mmcached.shm.segment.mapped import layout_of
from mmcached.shm.segment.ring_notes import read_note
from mmcached.wire.handle import RingAnnouncement
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually, small_config
from tests.present import present
from tests.shm.rings import overwritten

NUM_KEYS = 64


def record_of(number: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {"x": np.arange(number, number + 4096)}


def key_of(number: int) -> str:
    """Return a key as long as the others: so each record fits where another was, and none must go beside it."""
    return f"{number:03}"


def num_found(client: Client, num_keys: int = NUM_KEYS) -> int:
    """Return how many of the first keys are hit, all whole."""
    found = client.get_many([key_of(number) for number in range(num_keys)])
    for number, hit in enumerate(found):
        assert hit is None or np.array_equal(hit.record["x"], record_of(number)["x"])
    return sum(hit is not None for hit in found)


def store_ring(run_dir: Path) -> RingAnnouncement:
    note = present(read_note(run_dir, "store"))
    return note.ring


def test_all_that_was_there_is_hit_while_nobody_runs_and_after_it(run_dir: Path) -> None:
    config = small_config(world_size=0, store_gb=1 / 128, store_tenant_quota_gb=1 / 256)
    with (
        LoneFrontend(run_dir, config) as frontend,
        Client(run_dir) as client,
        Client(run_dir, tenant="ten") as other,
    ):
        for number in range(NUM_KEYS):
            assert client.put(key_of(number), record_of(number))
            assert other.put(key_of(number), record_of(number))
        assert num_found(client) == num_found(other) == NUM_KEYS
        held = present(other.get(key_of(5), view=True))
        for _ in range(2):
            before = frontend.stats().store.ring
            frontend.kill()
            assert num_found(client) == num_found(other) == NUM_KEYS
            frontend.start()
            assert num_found(client) == num_found(other) == NUM_KEYS
            assert client.put("after", record_of(0))
            assert client.drop("after")
            assert client.get("none") is None
            after = frontend.stats().store.ring
            assert (after.chunks, after.used_bytes) == (before.chunks, before.used_bytes)
        with Client(run_dir, tenant="ten") as third:
            assert num_found(third) == NUM_KEYS
        for number in range(NUM_KEYS, 3 * NUM_KEYS):  # the tenant's books were taken over: over its quota, its own go
            assert other.put(key_of(number), record_of(number))
        assert num_found(client) == NUM_KEYS
        assert num_found(other, 3 * NUM_KEYS) < 3 * NUM_KEYS
        assert np.array_equal(held.record["x"], record_of(5)["x"])
        held.close()
        del held
        eventually(frontend.stats, lambda stats: stats.store.ring.leases == 0, "no lease is out")


def move_records(words: memoryview, first: int, second: int) -> None:
    """Exchange what two slots say of their records, but for the digests of the keys."""
    for word in range(SLOT_WORDS * first, SLOT_WORDS * first + FIRST_KEY):
        other = word + SLOT_WORDS * (second - first)
        words[word], words[other] = words[other], words[word]


def rotate_digests(words: memoryview, *slots: int) -> None:
    for word in (FIRST_KEY, SECOND_KEY):
        digests = [words[SLOT_WORDS * slot + word] for slot in slots]
        for slot, digest in zip(slots, digests[1:] + digests[:1], strict=True):
            words[SLOT_WORDS * slot + word] = digest


@pytest.mark.parametrize(
    ("damage", "num_lost"),
    [(partial(move_records, first=5, second=9), 2), (lambda words: rotate_digests(words, 1, 5, 9), 3)],
    ids=["records moved", "digests rotated"],
)
def test_no_key_leads_to_the_record_of_another(
    run_dir: Path, damage: Callable[[memoryview], None], num_lost: int
) -> None:
    with LoneFrontend(run_dir, small_config(world_size=0, store_gb=1 / 128)) as frontend, Client(run_dir) as client:
        for number in range(NUM_KEYS):
            assert client.put(key_of(number), record_of(number))
        ring = store_ring(run_dir)
        frontend.kill()
        layout = layout_of(ring)
        with overwritten(ring.data_name) as words:
            table = words[layout.slots_offset // 8 : layout.index_offset // 8]
            damage(table)
            table.release()
        frontend.start()
        assert num_found(client) == NUM_KEYS - num_lost
        assert frontend.stats().store.ring.chunks == NUM_KEYS - num_lost
        for number in range(NUM_KEYS):
            assert client.put(key_of(number), record_of(number))
        assert num_found(client) == NUM_KEYS


@pytest.mark.parametrize("is_noticed", [True, False], ids=["fenced before", "fenced by the successor"])
def test_a_client_that_counts_what_cannot_be_costs_the_others_no_record(run_dir: Path, is_noticed: bool) -> None:
    with (
        LoneFrontend(run_dir, small_config(world_size=0, store_gb=1 / 128)) as frontend,
        Client(run_dir) as client,
        Client(run_dir) as liar,
    ):
        assert liar.put(key_of(0), record_of(0))
        held = present(liar.get(key_of(0), view=True))
        for number in range(1, NUM_KEYS):
            assert client.put(key_of(number), record_of(number))
        assert num_found(client) == NUM_KEYS
        ring = store_ring(run_dir)
        if not is_noticed:
            frontend.kill()
        with overwritten(ring.ctl_name) as words:
            words[layout_of(ring).returned_word(0, 0)] += 5  # the entry of the liar, which came first
        if is_noticed:
            eventually(frontend.stats, lambda stats: stats.store.ring.fenced_readers == 1, "the liar is fenced")
            frontend.kill()
        for _ in range(2):
            frontend.start()
            assert num_found(client) == NUM_KEYS
            after = frontend.stats().store.ring
            assert (after.fenced_readers, after.chunks) == (1, NUM_KEYS)
            assert after.pinned_bytes >= after.used_bytes
            frontend.kill()
        frontend.start()
        large = {"x": np.zeros(1 << 20, np.uint8)}
        for number in range(16):  # more than there is room for: what was there stays
            client.put(f"large {number}", large)
        assert num_found(client) == NUM_KEYS
        assert np.array_equal(held.record["x"], record_of(0)["x"])
        held.close()
        del held
        liar.close()
        eventually(frontend.stats, lambda stats: stats.store.ring.fenced_readers == 0, "the liar is gone")
        for number in range(16):
            assert client.put(f"later {number}", large)
        assert frontend.stats().store.ring.pinned_bytes == 0


def test_what_was_flushed_stays_flushed(run_dir: Path) -> None:
    with LoneFrontend(run_dir, small_config(world_size=0)) as frontend, Client(run_dir) as client:
        assert client.put("a", record_of(1))
        client.invalidate()
        frontend.kill()
        assert client.get("a") is None
        frontend.start()
        assert client.get("a") is None
        assert client.put("a", record_of(2))
        assert frontend.stats().store.new_epochs == 0


def test_a_store_of_another_size_begins_anew_and_leaves_nothing(
    run_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with LoneFrontend(run_dir, small_config(world_size=0)) as frontend, Client(run_dir) as client:
        assert client.put("a", record_of(1))
        held = present(client.get("a", view=True))
        frontend.kill()
        former_gb = 0.75 * small_config().store_gb
        small_config(world_size=0, store_gb=1 / 32).save(frontend.directory.config)
        frontend.start()
        assert client.get("a") is None
        assert client.put("a", record_of(2))
        assert np.array_equal(held.record["x"], record_of(1)["x"])
    of_ring = "store_gb × (1 − store_nursery_share)"
    reason = f"{of_ring} was {former_gb:.4g} and is 0.02344: leave it as it was to keep what is cached"
    (said,) = (line for line in capfd.readouterr().err.splitlines() if "the former ring is not adopted" in line)
    assert json.loads(said)["reason"] == reason
