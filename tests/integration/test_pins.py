"""Pins against real processes: a full store, a frontend that is killed, and a client that is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mmcached.client import Client
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.fetch_stats import PinStats
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import DEADLINE_S, eventually, small_config

FEW, LARGE_BYTES = 16, 100_000
CONFIG = small_config(world_size=0, store_gb=1 / 64)
MANY = 3 * CONFIG.store_data_bytes // LARGE_BYTES
"""Records that do not fit into the store together, large and small in turn: in nurseries and in the ring."""

PINNING = """
import os, signal, sys
from mmcached.client import Client
client = Client(sys.argv[1], fail_open=False)
assert client.pin(sys.argv[2:], ttl_s=600) == [True] * len(sys.argv[2:])
os.kill(os.getpid(), signal.SIGKILL)
"""


def record_of(number: int) -> dict[str, np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    return {"x": np.full(LARGE_BYTES if number % 2 else LARGE_BYTES // 4, number % 251, np.uint8)}


def fill(client: Client, prefix: str, number: int = MANY) -> list[str]:
    """Put records that no client asks for."""
    keys = [f"{prefix}{index}" for index in range(number)]
    for index, key in enumerate(keys):
        assert client.put(key, record_of(index))
    return keys


def check_whole(client: Client, keys: list[str]) -> None:
    for key in keys:
        hit = client.get(key)
        assert hit is not None, key
        assert np.array_equal(hit.record["x"], record_of(int(key[1:]))["x"])


def pins_of(frontend: LoneFrontend) -> PinStats:
    return frontend.stats().store.pins


def test_pinned_records_stay_in_a_full_store_and_the_others_go(run_dir: Path) -> None:
    with LoneFrontend(run_dir, CONFIG) as frontend, Client(run_dir, fail_open=False) as client:
        keys = fill(client, "k", FEW)
        pinned = keys[: FEW // 2]
        assert client.pin([*pinned, "none"], ttl_s=600) == [True] * len(pinned) + [False]
        fill(client, "x")
        assert client.contains_many(keys) == [key in pinned for key in keys]
        check_whole(client, pinned)
        assert pins_of(frontend).records == len(pinned)
        with pytest.raises(InvalidRequest, match=r"pinned bytes = \d+: at most \d+ of all clients"):
            client.pin(fill(client, "y", 80)[-80:], ttl_s=600)
        assert client.unpin([*pinned, *pinned, "none"]) == len(pinned)
        assert pins_of(frontend) == PinStats()
        assert client.pin(pinned[:2], ttl_s=600) == [True, True]
        assert client.drop(pinned[0])
        assert pins_of(frontend).records == 1
        client.flush()
        assert pins_of(frontend) == PinStats()


def test_a_pin_ends_with_its_time(run_dir: Path) -> None:
    with LoneFrontend(run_dir, CONFIG) as frontend, Client(run_dir, fail_open=False) as client:
        keys = fill(client, "k", 2)
        assert client.pin(keys[:1], ttl_s=0.1) == [True]
        assert client.pin(keys[1:], ttl_s=600) == [True]
        eventually(lambda: pins_of(frontend), lambda pins: pins.records == 1, "the end of one pin")
        assert client.contains_many(keys) == [True, True]


def test_pins_outlive_their_client_and_end_with_the_frontend(run_dir: Path) -> None:
    with LoneFrontend(run_dir, CONFIG) as frontend, Client(run_dir, fail_open=False) as client:
        keys = fill(client, "k", FEW)
        ended = subprocess.run([sys.executable, "-c", PINNING, str(run_dir), *keys], timeout=DEADLINE_S, check=False)
        assert ended.returncode == -9
        fill(client, "x")
        check_whole(client, keys)
        assert pins_of(frontend).records == FEW
        frontend.kill()
        check_whole(client, keys)
        frontend.start()
        check_whole(client, keys)
        assert pins_of(frontend) == PinStats()
        assert client.pin(keys, ttl_s=600) == [True] * FEW
        fill(client, "y")
        check_whole(client, keys)
