"""Measures what `mmcached demo` shows, again and again beside a busy loop: known photographs against new ones.

Each round is the demo's first stage with a service of its own: 18 photographs, two engines with a worker each. On two
cores a loop that never waits leaves one and a half of them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from mmcached.cli.config.settings import load_config
from mmcached.cli.demo.cost import measure_costs, warm_up
from mmcached.cli.demo.photos import load_photos
from mmcached.cli.demo.run import as_shown
from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from mmcached.wire.extras import how_to_install
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Unavailable, row

RUNS, QUICK_RUNS = 10, 2
BESIDE = "beside a busy loop"
NEW = "new"
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
BOUNDS = [
    Bound("reach", "in another engine", BESIDE, NEW, 0.1),
    Bound("reach", "in a client, in place", BESIDE, NEW, 0.01),
]


@contextlib.contextmanager
def busy_loop() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) as loop:
        yield
        loop.kill()


def runs(num_runs: int) -> Iterator[Row]:
    try:
        metadata.distribution("scikit-image")
    except metadata.PackageNotFoundError:
        raise Unavailable(f"scikit-image is not installed: {how_to_install('demo')}") from None
    with busy_loop():
        for _ in range(num_runs):
            yield from one_run()


def one_run() -> Iterator[Row]:
    config, photos = as_shown(load_config(file=None, environment={}, arguments=[])), load_photos(None)
    with (
        tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch,
        ChildService(Path(scratch) / "s", config, Path(scratch) / "config.json") as service,
        Client(service.run_dir) as client,
    ):
        warm_up(client, config.num_engines)
        new, *known = measure_costs(client, photos, config.num_engines, lambda: None)
    for cost in known:
        yield row(cost.situation, BESIDE, 1e3 * cost.median_s, "ms", peer=NEW, peer_value=1e3 * new.median_s)


if __name__ == "__main__":
    harness.main("the demo", ["runs"], lambda undo: {"runs": runs}, rounds=(RUNS, QUICK_RUNS), bounds=BOUNDS)
