"""A frontend is killed, and its successor goes on with its store: no hit is missed meanwhile, none after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mmcached.client import Client
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually, small_config

NUM_KEYS = 64


def record_of(number: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    return {"x": np.arange(number, number + 4096)}


def key_of(number: int) -> str:
    """Return a key as long as the others: so each record fits where another was, and none must go beside it."""
    return f"{number:03}"


def num_found(client: Client) -> int:
    """Return how many of the keys are hit, all whole."""
    found = client.get_many([key_of(number) for number in range(NUM_KEYS)])
    for number, hit in enumerate(found):
        assert hit is None or np.array_equal(hit.record["x"], record_of(number)["x"])
    return sum(hit is not None for hit in found)


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
        held = other.get(key_of(5), view=True)
        assert held is not None
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
        assert num_found(other) < NUM_KEYS
        assert np.array_equal(held.record["x"], record_of(5)["x"])
        held.close()
        del held
        eventually(frontend.stats, lambda stats: stats.store.ring.leases == 0, "no lease is out")


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


def test_a_store_of_another_size_begins_anew_and_leaves_nothing(run_dir: Path) -> None:
    with LoneFrontend(run_dir, small_config(world_size=0)) as frontend, Client(run_dir) as client:
        assert client.put("a", record_of(1))
        held = client.get("a", view=True)
        assert held is not None
        frontend.kill()
        small_config(world_size=0, store_gb=1 / 32).save(frontend.directory.config)
        frontend.start()
        assert client.get("a") is None
        assert client.put("a", record_of(2))
        assert np.array_equal(held.record["x"], record_of(1)["x"])
