"""A film is decoded once per host, and a new one is returned before it is put, whatever becomes of the put."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.client import Client
from mmcached.integrations.processed_inputs import item_saver, vllm_films
from mmcached.integrations.processed_inputs.vllm_films import Film, SharedFilms, share_films
from mmcached.wire.limits import LimitsConfig
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import small_config

DEADLINE_S = 60.0
METADATA: dict[str, Any] = {"fps": 8.0, "total_num_frames": 16, "indices": [0, 8], "backend": "fake", "do": None}


class Loader:
    """A loader like vLLM's, that counts; `before` runs first in each call."""

    num_decoded = 0
    metadata: Any = METADATA

    @staticmethod
    def before() -> None:
        """Do nothing."""

    @classmethod
    def load_bytes(cls, data: bytes, num_frames: int = 2) -> Film:
        cls.before()
        cls.num_decoded += 1
        draw = np.random.default_rng(list(data))
        return draw.integers(0, 256, (num_frames, 64, 64, 3), np.uint8), cls.metadata


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> type[Loader]:
    """A class of its own for the test; a put waits for a stopped store for as long as the test may last."""
    monkeypatch.setattr(item_saver, "PUT_S", DEADLINE_S)
    return type("Own", (Loader,), {"num_decoded": 0})


@pytest.fixture
def frontend(run_dir: Path) -> Iterator[LoneFrontend]:
    limits = LimitsConfig(claim_timeout_s=3600.0)  # no test passes because a claim was too old
    with LoneFrontend(run_dir, small_config(world_size=0, limits=limits)) as frontend:
        yield frontend


@pytest.fixture
def films(frontend: LoneFrontend) -> Iterator[Callable[[], SharedFilms]]:
    """Make the films of one more process."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(SharedFilms(Client(frontend.directory.path)))


def assert_film(film: Film, data: bytes, num_frames: int = 2) -> None:
    wanted, _ = Loader.load_bytes(data, num_frames)
    frames, metadata = film
    assert frames.dtype == wanted.dtype
    assert np.array_equal(frames, wanted)
    assert repr(metadata) == repr(METADATA)


def test_another_process_finds_the_frames(films: Callable[[], SharedFilms], loader: type[Loader]) -> None:
    first, second = films(), films()
    assert_film(first.load(loader, b"film"), b"film")
    assert first.drain(DEADLINE_S)
    for reader in (second, first, second):
        assert_film(reader.load(loader, b"film"), b"film")
    assert loader.num_decoded == 1
    assert_film(second.load(loader, b"other"), b"other")
    assert_film(second.load(loader, b"film", num_frames=3), b"film", 3)
    assert loader.num_decoded == 3


def test_the_answer_does_not_wait_for_the_store(
    frontend: LoneFrontend,
    films: Callable[[], SharedFilms],
    loader: type[Loader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = films(), films()
    first.load(loader, b"connects")
    monkeypatch.setattr(loader, "before", staticmethod(lambda: os.kill(frontend.process.pid, signal.SIGSTOP)))
    try:
        assert_film(first.load(loader, b"film"), b"film")
        assert not first.drain(0), "the store has not answered"
        assert_film(first.load(loader, b"film"), b"film")
        assert loader.num_decoded == 2, "found in its process"
    finally:
        os.kill(frontend.process.pid, signal.SIGCONT)
    assert first.drain(DEADLINE_S)
    assert_film(second.load(loader, b"film"), b"film")
    assert loader.num_decoded == 2


def test_a_store_that_is_killed_before_the_put(
    frontend: LoneFrontend,
    films: Callable[[], SharedFilms],
    loader: type[Loader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = films(), films()
    first.load(loader, b"connects")
    monkeypatch.setattr(loader, "before", staticmethod(frontend.kill))
    assert_film(first.load(loader, b"film"), b"film")
    assert first.drain(DEADLINE_S)
    monkeypatch.setattr(loader, "before", Loader.before)
    for reader in (first, second):
        assert_film(reader.load(loader, b"film"), b"film")
    frontend.start()
    assert_film(first.load(loader, b"film"), b"film")


def test_another_process_waits_for_the_put(
    films: Callable[[], SharedFilms], loader: type[Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim lasts until the film is in the store: no other process decodes it meanwhile."""
    monkeypatch.setattr(vllm_films, "WAIT_S", DEADLINE_S)
    first, second = films(), films()
    has_begun, may_end = threading.Event(), threading.Event()

    def before() -> None:
        has_begun.set()
        assert may_end.wait(DEADLINE_S)

    monkeypatch.setattr(loader, "before", staticmethod(before))
    with ThreadPoolExecutor(3) as pool:
        try:
            decoded = pool.submit(first.load, loader, b"film")
            assert has_begun.wait(DEADLINE_S)
            waiting = [pool.submit(each.load, loader, b"film") for each in (first, second)]
        finally:
            may_end.set()
        for each in (decoded, *waiting):
            assert_film(each.result(DEADLINE_S), b"film")
    assert loader.num_decoded == 1


@pytest.mark.parametrize("end", ["close", "no room", "an error", "other metadata", "frames elsewhere"])
def test_the_claim_ends_without_a_record(
    frontend: LoneFrontend,
    films: Callable[[], SharedFilms],
    loader: type[Loader],
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    """Another process decodes the film then, without a wait for the claim's time to end."""
    with monkeypatch.context() as patch:
        if end == "close":
            patch.setattr(item_saver, "DELAY_S", DEADLINE_S)
        if end == "no room":
            patch.setattr(item_saver, "MAX_UNSAVED_BYTES", 1)
        first = films()
    second = films()
    with monkeypatch.context() as patch:
        if end == "other metadata":
            patch.setattr(loader, "metadata", {"fps": np.float64(8)})
        if end == "frames elsewhere":
            patch.setattr(loader, "load_bytes", lambda data: (list(data), METADATA))
        if end == "an error":
            patch.setattr(loader, "load_bytes", lambda data: data[9])
            with pytest.raises(IndexError):
                first.load(loader, b"film")
        else:
            first.load(loader, b"film")
    if end == "close":
        first.close()
    else:
        assert first.drain(DEADLINE_S)
    assert frontend.at_rest().store.computing == 0
    before = loader.num_decoded
    assert_film(second.load(loader, b"film"), b"film")
    assert loader.num_decoded == before + 1


def test_loaders_of_a_registry(films: Callable[[], SharedFilms], loader: type[Loader]) -> None:
    own = films()
    loaders: dict[str, type] = {"fake": loader}
    for _ in range(2):
        share_films(loaders, lambda: own)
    shared: Any = loaders["fake"]
    assert issubclass(shared, loader)
    assert shared.decodes_by is loader
    for _ in range(2):
        assert_film(shared.load_bytes(b"film", num_frames=3), b"film", 3)
    assert loader.num_decoded == 1
