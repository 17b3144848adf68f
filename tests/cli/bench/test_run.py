"""The command measures a store of its own, beside Redis if it is there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mmcached.cli.bench.figures import OF_REDIS, CallKind
from mmcached.cli.bench.redis import has_redis_server
from mmcached.cli.bench.run import measure
from mmcached.wire.errors import ConfigError


def test_a_short_run_measures_every_kind() -> None:
    options = ["--seconds", "0.5", "--sizes", "4KiB,256KiB", "--clients", "1,2", "--json"]
    command = [sys.executable, "-m", "mmcached", "bench", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == "", "in a pipe there is no progress bar"
    found = json.loads(ended.stdout)
    kinds = [kind for kind in CallKind if kind not in OF_REDIS or has_redis_server()]
    expected = [(kind, number, size) for number in (1, 2) for size in (4096, 256 << 10) for kind in kinds]
    assert [(each["kind"], each["num_clients"], each["num_bytes"]) for each in found] == expected
    assert all(each["num_calls"] >= 2 * 3 * each["num_clients"] and each["p99_us"] > 0 for each in found)


def test_records_for_which_dev_shm_has_no_room_are_refused() -> None:
    with pytest.raises(ConfigError, match="take at most"):
        measure([1 << 30], [1], 1.0)
