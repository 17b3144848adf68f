"""Records that a client has fetched ahead, end to end: two frontends, and their second levels in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import Client
from tests.client.records import is_equal, numbers
from tests.docs.pages import code
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S, eventually
from tests.second_level.frontends import Fleet

NUM = 40


@pytest.fixture
def fleet(run_dir: Path) -> Iterator[Fleet]:
    with Fleet(run_dir) as fleet:
        yield fleet
        fleet.server.released.set()


def computed_by(client: Client, level: Any, prefix: str) -> list[str]:
    """Have a host compute records; return their keys once the server has them."""
    keys = [f"{prefix} {number}" for number in range(NUM)]
    for number, key in enumerate(keys):
        client.put(key, numbers(number))
    eventually(lambda: level.stats().puts_kept, lambda count: count == NUM, "all saves")
    return keys


def test_what_was_prefetched_is_a_local_hit(fleet: Fleet) -> None:
    (ann, of_ann), (bob, of_bob) = fleet.host("a"), fleet.host("b")
    keys = computed_by(ann, of_ann, "k")
    assert bob.contains_many(keys) == [False] * NUM
    assert bob.prefetch([*keys, "nobody's"]) == NUM + 1
    stats = eventually(lambda: bob.stats().store.prefetches, lambda stats: not stats.open, "the end of all")
    assert (stats.hits, stats.misses) == (NUM, 1)
    num_calls = fleet.server.num_calls
    for number, key in enumerate(keys):
        hit = bob.get(key, local=True, tensors="numpy")
        assert hit is not None
        assert is_equal(hit.record, numbers(number))
    assert fleet.server.num_calls - num_calls <= 1, "no call but a probe"
    assert of_bob.stats().gets_hit == NUM
    assert bob.prefetch(keys) == 0
    assert of_bob.stats().puts_kept == 0, "what was fetched is not saved again"


def test_a_get_overtakes_a_prefetch(fleet: Fleet) -> None:
    (ann, of_ann), (bob, _) = fleet.host("a"), fleet.host("b")
    keys = computed_by(ann, of_ann, "k")
    entered, go_on = threading.Event(), threading.Event()

    def hold(what: str) -> None:
        if what == "get_many" and not entered.is_set():
            entered.set()
            assert go_on.wait(DEADLINE_S)

    fleet.server.before = hold
    assert bob.prefetch(keys) == NUM
    assert entered.wait(DEADLINE_S)
    hit = bob.get(keys[0], tensors="numpy")
    assert hit is not None
    assert is_equal(hit.record, numbers(0))
    assert bob.get_or_compute(keys[-1], lambda: numbers(-1), tensors="numpy")["seed"] == NUM - 1
    go_on.set()
    stats = eventually(lambda: bob.stats().store.prefetches, lambda stats: not stats.open, "the end of all")
    assert (stats.hits + stats.overtaken, stats.overtaken >= 2) == (NUM, True)


def test_a_prefetch_before_a_flush_brings_nothing_after_it(fleet: Fleet) -> None:
    (ann, of_ann), (bob, _) = fleet.host("a"), fleet.host("b")
    keys = computed_by(ann, of_ann, "k")
    entered, go_on = threading.Event(), threading.Event()

    def hold(what: str) -> None:
        if what == "get_many":
            entered.set()
            assert go_on.wait(DEADLINE_S)

    fleet.server.before = hold
    assert bob.prefetch(keys) == NUM
    assert entered.wait(DEADLINE_S)
    flushing = threading.Thread(target=bob.invalidate)
    flushing.start()
    eventually(lambda: bob.stats().store.prefetches.open, lambda count: count == 0, "the flush has begun")
    go_on.set()
    flushing.join(DEADLINE_S)
    assert not flushing.is_alive()
    assert bob.contains_many(keys) == [False] * NUM


def test_a_client_that_dies_leaves_its_prefetches(fleet: Fleet, run_dir: Path) -> None:
    (ann, of_ann), (bob, _) = fleet.host("a"), fleet.host("b")
    keys = computed_by(ann, of_ann, "k")
    with Client(run_dir / "b", tenant="t") as eve:
        assert eve.prefetch(keys) == NUM
    eventually(lambda: bob.contains_many(keys), all, "all records")


def test_the_page_runs(fleet: Fleet) -> None:
    """The Python of docs/fleet.md does what the page says."""
    (ann, of_ann), (bob, _) = fleet.host("a"), fleet.host("b")
    for key in ("cat@v1", "dog@v1"):
        ann.put(key, numbers(1))
    eventually(lambda: of_ann.stats().puts_kept, lambda count: count == 2, "the saves")
    prefetching, dropping = code(REPOSITORY / "docs" / "fleet.md", "py")
    names: dict[str, Any] = {"client": bob}
    exec(prefetching, names)
    assert names["num_begun"] == 2
    eventually(lambda: bob.contains_many(["cat@v1", "dog@v1"]), all, "both records")
    exec(dropping, names)
    assert names["is_certain"]
    assert bob.get("cat@v1") is None
