"""`mmcached verify` against a store with a host that recomputes: its report and its exit statuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from mmcached.cli.admin import verify
from mmcached.cli.serve import seat
from mmcached.client import Client
from tests.client.services import StoreService
from tests.shm.processes import DEADLINE_S

KEY = "mine/1"


@pytest.fixture
def run_dir_of_store(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(seat, "supervisor_pid", lambda path: 1)
    with StoreService(run_dir):
        yield run_dir


@contextmanager
def host(run_dir: Path, computed: float) -> Iterator[None]:
    """Recompute one hit as soon as it is sampled."""

    def run() -> None:
        with Client(run_dir) as client:
            client.put(KEY, {"x": np.ones(3)})
            is_ready.set()
            while not is_over.is_set() and KEY not in client.sampled([KEY]):
                is_over.wait(0.001)
            client.verified(KEY, {"x": np.ones(3)}, {"x": np.full(3, computed)})
            client.ping()  # the report has arrived before the answer

    is_ready, is_over = threading.Event(), threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert is_ready.wait(DEADLINE_S)
    try:
        yield
    finally:
        is_over.set()
        thread.join(DEADLINE_S)


def call(run_dir: Path, *arguments: str) -> Result:
    app = typer.Typer()
    verify.register(app)
    return CliRunner().invoke(app, ["--run-dir", str(run_dir), "--sample", "1", "--seconds", "0.5", *arguments])


def test_a_verification_without_differences_says_so(run_dir_of_store: Path) -> None:
    with host(run_dir_of_store, 1.0):
        found = call(run_dir_of_store)
    assert (found.exit_code, found.stdout) == (0, "1 hit recomputed, 0 differed\n")


def test_a_difference_is_an_exit_status_and_names_what_is_not_shared(run_dir_of_store: Path) -> None:
    with host(run_dir_of_store, 2.0):
        found = call(run_dir_of_store)
    assert found.exit_code == 1
    assert found.stdout.splitlines() == ["1 hit recomputed, 1 differed", "not shared until the next flush: mine/"]
    again = call(run_dir_of_store, "--json")
    assert again.exit_code == 0, "nothing differed in this verification"
    assert json.loads(again.stdout) == {"verified": 0, "different": 0, "refused": ["mine/"]}


def test_without_a_service_it_says_so(run_dir: Path) -> None:
    assert call(run_dir).exit_code == 3
