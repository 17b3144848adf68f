"""What `mmcached serve` says in a pipe: what it starts, that it is ready, and at its end what it has done."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from mmcached.client import Client
from tests.integration.processes import eventually, stats_of
from tests.shm.processes import DEADLINE_S


def test_a_start_and_an_end_are_a_line_each(run_dir: Path) -> None:
    home = run_dir / "s"
    serve = [sys.executable, "-m", "mmcached", "serve", "--workers", "0", "--store-gb", "0.02"]
    command = [*serve, "--run-dir", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        assert service.stdout is not None
        assert service.stderr.readline() == f"mmcached: starting the frontend alone, a store, in {home}\n"
        assert service.stdout.readline().startswith(f"mmcached ready: {home} (pid {service.pid})")
        with Client(home, fail_open=False) as client:
            client.put("key", {"x": np.arange(3)})
            assert [client.get(key) is not None for key in ("key", "key", "key", "other")] == [True] * 3 + [False]
        eventually(lambda: stats_of(home).store.queries, lambda queries: queries == 4, "what the client has counted")
        service.send_signal(signal.SIGTERM)
        said = service.stderr.read()
        assert service.wait(DEADLINE_S) == 0
    figures = r"0 generations and embeddings, 0 failed; 1 record put; found in the caches: store \(records\) 75%"
    assert re.fullmatch(rf"mmcached: ended after \d+ \w+; {figures}\n", said), said
