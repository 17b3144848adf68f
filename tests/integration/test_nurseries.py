"""Frontends and clients that are killed and stopped while large records lie in nurseries: no wrong byte, none lost."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.client import Client
from mmcached.client.store import nursery
from mmcached.client.store.session import StoreSession
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.wire.errors import SegmentError
from tests.client.records import is_equal, numbers
from tests.client.store.at_once import AtOnce
from tests.house import REPOSITORY
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import DEADLINE_S, eventually, small_config
from tests.present import present

LARGE = 1 << 20
NUM_KEYS = 6
NUM_LAPS = 5


@pytest.fixture(autouse=True)
def populated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "Populator", AtOnce)


CHILD = """
import sys
from pathlib import Path
import numpy as np
from mmcached.client import Client
from mmcached.client.store import nursery
from mmcached.shm import EncodedRecord
from tests.client.store.at_once import AtOnce
nursery.Populator = AtOnce
with Client(Path(sys.argv[1])) as client:
    for number in range(3):
        assert client.put(f"stopped {number}", {"x": np.full(1 << 20, 7, np.uint8)})
    write = EncodedRecord.write_into
    def fill(self, buffer):
        buffer[:100] = 0xEE
        print("filling", flush=True)
        sys.stdin.readline()
        buffer[:] = 0xEE
        print("filled", flush=True)
        write(self, buffer)
    EncodedRecord.write_into = fill
    client.put("late", {"x": np.full(1 << 20, 0xEE, np.uint8)})
    EncodedRecord.write_into = write
    print("put" if client.put("again", {"x": np.full(1 << 20, 9, np.uint8)}, timeout_s=30) else "refused", flush=True)
    sys.stdin.readline()
"""


def num_files() -> int:
    return sum("nursery" in name for name in os.listdir(SHM_DIR))


def holds(client: Client, key: str, seed: int) -> bool:
    hit = client.get(key, tensors="numpy")
    return hit is not None and is_equal(hit.record, numbers(seed, LARGE))


def test_a_successor_finds_all_records_and_removes_what_is_empty(run_dir: Path) -> None:
    config = small_config(world_size=0, store_gb=1 / 16)
    with LoneFrontend(run_dir, config) as frontend, Client(run_dir) as client, Client(run_dir) as reader:
        with Client(run_dir) as short_lived:
            assert short_lived.put("gone", numbers(99, LARGE))
        for number in range(NUM_KEYS):
            assert client.put(f"{number}", numbers(number, LARGE))
        held = present(reader.get("0", view=True, tensors="numpy"))
        for kill in range(2):
            frontend.kill()
            assert all(holds(reader, f"{number}", number) for number in range(NUM_KEYS)), "nobody runs"
            frontend.start()
            assert all(holds(reader, f"{number}", number) for number in range(NUM_KEYS))
            eventually(partial(client.put, "again", numbers(50 + kill, LARGE), overwrite=True), bool, "kept")
            assert holds(reader, "again", 50 + kill)
            assert frontend.stats().store.nursery_puts == 1, "in a nursery of its own"
        assert is_equal(held.record, numbers(0, LARGE))
        assert holds(reader, "gone", 99)
        num_before = num_files()
        assert client.drop("gone")
        eventually(num_files, lambda found: found == num_before - 1, "its file is removed with its only record")
        held.close()
        del held
        frontend.at_rest()


@contextlib.contextmanager
def stopped_while_it_fills(run_dir: Path) -> Iterator[subprocess.Popen[str]]:
    """A client that has three records in its nursery, and is stopped while it fills another place."""
    command = [sys.executable, "-c", CHILD, str(run_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "filling\n"
            child.send_signal(signal.SIGSTOP)
            yield child
        finally:
            child.kill()


def test_a_stopped_writer_that_wakes_up_writes_where_nobody_reads(run_dir: Path) -> None:
    config = small_config(world_size=0, store_gb=1 / 16)
    with LoneFrontend(run_dir, config) as frontend, stopped_while_it_fills(run_dir) as child, Client(run_dir) as client:
        frontend.kill()
        frontend.start()
        for number in range(NUM_KEYS):
            assert client.put(f"{number}", numbers(number, LARGE))
        child.send_signal(signal.SIGCONT)
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "filled\n"
        assert child.stdout.readline() == "put\n"
        for number in range(NUM_KEYS):
            assert holds(client, f"{number}", number)
        for key, value in (("stopped 0", 7), ("stopped 2", 7), ("again", 9)):
            hit = present(client.get(key, tensors="numpy"))
            assert set(np.unique(hit["x"]).tolist()) == {value}


def test_a_writer_that_is_killed_leaves_its_records_to_all(run_dir: Path) -> None:
    config = small_config(world_size=0, store_gb=1 / 16)
    with LoneFrontend(run_dir, config) as frontend, stopped_while_it_fills(run_dir) as child, Client(run_dir) as client:
        child.kill()
        child.wait(DEADLINE_S)
        for number in range(3):
            hit = present(client.get(f"stopped {number}", tensors="numpy"))
            assert set(np.unique(hit["x"]).tolist()) == {7}
        assert client.get("late") is None
        for number in range(40):
            assert client.put(f"{number}", numbers(number, LARGE))
        seen = eventually(frontend.stats, lambda stats: stats.store.nurseries == 1, "its nursery gave way first")
        assert seen.store.nursery_bytes <= 16 << 20
        assert num_files() == 1


@contextlib.contextmanager
def cut_short_at_any_moment(path: Path, rng: random.Random) -> Iterator[None]:
    """Cut the last record of a file short, but not its head, and make the file as long as it was, again and again in a
    thread; nobody here may map it.
    """
    is_over, begin = threading.Event(), path.read_bytes().rfind(b"MMREC")
    with path.open("r+b") as file:
        nbytes = path.stat().st_size

        def cut() -> None:
            while not is_over.is_set():
                os.ftruncate(file.fileno(), begin + rng.randrange(LARGE, 3 * LARGE))
                os.ftruncate(file.fileno(), nbytes)

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def test_a_client_that_cuts_its_file_short_at_any_moment_does_not_end_the_frontend(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its records are sent as frames, copied into the ring and taken over."""
    rng = random.Random(1)

    def refuse(*_: Any) -> None:
        raise SegmentError("this client maps nothing")

    config = small_config(world_size=0, store_gb=1 / 16)
    with LoneFrontend(run_dir, config) as frontend, Client(run_dir, fail_open=False) as honest:
        monkeypatch.setattr(StoreSession, "_become_reader", refuse)
        with Client(run_dir) as reader:
            for lap in range(NUM_LAPS):
                before = set(SHM_DIR.iterdir())
                with Client(run_dir) as liar:
                    assert liar.put("spoiled", numbers(lap, 3 * LARGE), overwrite=True)
                    (path,) = (path for path in set(SHM_DIR.iterdir()) - before if ".nursery" in path.name)
                    maps = Path(f"/proc/{frontend.process.pid}/maps").read_text()
                    assert ".nursery" not in maps, "what is cut short in the middle of a look there ends who looks"
                    with cut_short_at_any_moment(path, rng):
                        for _ in range(20):
                            reader.get("spoiled")
                assert honest.put("honest", {"lap": lap}, overwrite=True)
            with Client(run_dir) as liar:
                keys = [f"{number}" for number in range(3)]
                before = set(SHM_DIR.iterdir())
                assert all(liar.put(key, numbers(1, 3 * LARGE)) for key in keys)
                reader.get_many(keys)  # they are copied into the ring when room is short
                (path,) = (path for path in set(SHM_DIR.iterdir()) - before if ".nursery" in path.name)
                with cut_short_at_any_moment(path, rng):
                    for number in range(12):
                        assert honest.put(f"honest {number}", numbers(number, LARGE))
                    frontend.kill()
                    frontend.start()
            assert holds(honest, "honest 11", 11)
            assert frontend.process.poll() is None
        frontend.at_rest()
