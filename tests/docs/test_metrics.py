"""The page about metrics says how the ways of one key through the store are counted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from mmcached.client import Claim, Client, Pending
from tests.house import REPOSITORY
from tests.integration.local_service import LocalService
from tests.integration.processes import eventually, small_config

PAGE = REPOSITORY / "docs" / "metrics.md"
ROWS = {
    what: tuple(map(int, counts))
    for what, *counts in re.findall(r"^\| ([^|]+) \| (\d) \| (\d) \| (\d) \| (\d) \|$", PAGE.read_text(), re.MULTILINE)
}
"""What happens to a key: queries, hits, misses and puts that it counts as."""
KEY = "output"


def test_what_happens_to_a_key_counts_as_the_page_says(run_dir: Path) -> None:
    with LocalService(run_dir, small_config(world_size=1)), Client(run_dir) as watching:

        def figures() -> tuple[int, int, int, int]:
            store = watching.stats().store
            return store.queries, store.hits, store.queries - store.hits, store.puts

        def check(what: str) -> None:
            """Wait until the figures have risen as the page says."""
            counted = tuple(now + more for now, more in zip(before[-1], left.pop(what), strict=True))
            before.append(eventually(figures, lambda now: now == counted, f"{what}: {counted}"))

        left, before = dict(ROWS), [figures()]
        with Client(run_dir, name="one") as one, Client(run_dir, name="two") as two:
            assert one.get(KEY) is None
            check("an engine looks for it and does not find it")
            (claim,) = one.claim_many([KEY])
            assert isinstance(claim, Claim)
            check("that engine claims it, to encode it")
            assert two.get(KEY) is None
            check("another engine looks again while it waits: one poll")
            (pending,) = two.claim_many([KEY])
            assert isinstance(pending, Pending)
            check("another engine asks for a claim, and is told to wait")
            assert one.put(KEY, {"x": np.zeros(100_000, np.float32)}, claim=claim)
            check("the output is put")
            hit = two.get(KEY, view=True)
            assert hit is not None
            assert hit.token is not None
            check("an engine finds it")
            assert one.open(hit.token, view=True) is not None
            check("a worker opens what its scheduler has found; once for each rank")
    assert not left
