"""Engines with two ranks each, as processes over gloo: their ranks take an embedding from the store, or run the tower,
together.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mmcached.cache.name_files import known_names
from mmcached.client import Client
from mmcached.integrations.sglang.identity import item_key
from tests.hosts.sglang.conftest import store_config
from tests.hosts.sglang.rank_processes import DEADLINE_S, Ranks, ranks
from tests.hosts.sglang.test_engine_cache import ROWS, WIDTH, hash_of
from tests.integration.lone_frontend import LoneFrontend

pytestmark = pytest.mark.timeout(1200)
ENGINE = "tests.hosts.sglang.engine_rank"


@pytest.fixture(scope="module")
def kept_store() -> Iterator[LoneFrontend]:
    with (
        tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as folder,
        LoneFrontend(Path(folder) / "s", store_config()) as store,
    ):
        yield store


@pytest.fixture(scope="module")
def engines(checkpoint: Path, kept_store: LoneFrontend) -> Iterator[tuple[Ranks, Ranks]]:
    """Two engines that share; each test has pictures of its own, and leaves them as they were."""
    path = kept_store.directory.path
    with ranks(ENGINE, checkpoint, path) as one, ranks(ENGINE, checkpoint, path) as other:
        for engine in (one, other):
            engine.tell("forget")  # answered when it has started
        yield one, other


def test_ranks_share(kept_store: LoneFrontend, engines: tuple[Ranks, Ranks]) -> None:
    one, other = engines
    before = kept_store.stats().store.puts
    digest, encoded = one.step(1, 2)
    assert encoded == [1, 2]
    assert kept_store.stats().store.puts == before + 2, "one rank saves"
    assert other.step(1, 2) == (digest, [])
    assert other.step(2, 3)[1] == [3]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_makes_all_encode(engines: tuple[Ranks, Ranks], rank: int) -> None:
    one, _ = engines
    digest, _ = one.step(10)
    one.tell("forget")
    one.tell("break_device", ranks=(rank,))
    assert one.step(10) == (digest, [10])
    one.tell("forget")
    assert one.step(10) == (digest, [])


def test_a_rank_without_a_store_makes_all_encode(
    checkpoint: Path, kept_store: LoneFrontend, engines: tuple[Ranks, Ranks], tmp_path: Path
) -> None:
    digest, _ = engines[0].step(20)
    with ranks(ENGINE, checkpoint, kept_store.directory.path, tmp_path / "nothing") as half_blind:
        assert half_blind.step(20) == (digest, [20])


def test_a_wrong_record_is_replaced(kept_store: LoneFrontend, engines: tuple[Ranks, Ranks]) -> None:
    one, other = engines
    one.step(30)
    (name, *_) = known_names(kept_store.directory.path)
    with Client(kept_store.directory.path, fail_open=False) as writer:
        assert writer.put(item_key(name, hash_of(31)), {"embedding": torch.full((ROWS, WIDTH), torch.nan)})
        assert writer.put(item_key(name, hash_of(32)), {"embedding": torch.zeros(ROWS - 1, WIDTH)})
    digest, encoded = one.step(31, 32)
    assert encoded == [31, 32]
    assert other.step(31, 32) == (digest, [])


@pytest.mark.parametrize("rank", [0, 1])
def test_the_weights_of_every_rank_count(engines: tuple[Ranks, Ranks], rank: int) -> None:
    """Each rank has a part of the tower."""
    one, other = engines
    picture = 40 + rank

    def update(engine: Ranks, by: float) -> None:
        engine.tell("update", by, ranks=(rank,))
        engine.tell("update", 0.0, ranks=(1 - rank,))

    update(one, 1.0)
    one.step(picture)
    assert other.step(picture)[1] == [picture]
    update(other, 1.0)
    assert other.step(picture)[1] == []
    for engine in engines:
        update(engine, -1.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_read_its_weights_shares_nothing(engines: tuple[Ranks, Ranks], rank: int) -> None:
    one, other = engines
    picture = 50 + rank
    one.step(picture)
    other.tell("break_weights", ranks=(rank,))
    other.tell("update", 0.0, ranks=(1 - rank,))
    assert other.step(picture)[1] == [picture]
    other.tell("mend_weights", ranks=(rank,))
    other.tell("update", 0.0, ranks=(1 - rank,))
    assert other.step(picture)[1] == []


def test_a_killed_rank_costs_its_engine_only(
    checkpoint: Path, kept_store: LoneFrontend, engines: tuple[Ranks, Ranks]
) -> None:
    with ranks(ENGINE, checkpoint, kept_store.directory.path) as engine:
        digest, _ = engine.step(60)
        engine.processes[0].kill()
        engine.tell("step", 61, ranks=(1,))
        assert engine.processes[1].wait(DEADLINE_S) != 0
    assert engines[0].step(60) == (digest, [])


def test_ranks_go_on_without_the_store(checkpoint: Path, store: LoneFrontend) -> None:
    with ranks(ENGINE, checkpoint, store.directory.path) as engine:
        pictures = range(200, 220)
        digest, _ = engine.step(*pictures)
        for _ in range(3):
            engine.tell("forget")
            assert engine.step(*pictures, meanwhile=store.kill)[0] == digest
            assert engine.step(*pictures, 1)[1] in ([1], []), "found in the memory that is left, or encoded"
            store.start()
        give_up = time.monotonic() + DEADLINE_S
        for picture in itertools.count(3):  # a client connects again in a while
            digest, _ = engine.step(picture)
            engine.tell("forget")
            again, encoded = engine.step(picture)
            assert again == digest
            if not encoded:
                break
            assert time.monotonic() < give_up, "the ranks do not share again"
