"""The read path in C: the same hits as in Python, and leases that end in every way that a process can.

`make test-c` runs all tests of the client with it; these build the module themselves.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from mmcached.cache.store_keys import store_key
from mmcached.client import Client
from mmcached.client.store import native_session
from mmcached.client.store.native_session import NativeSession, session_type
from mmcached.client.store.session import StoreSession
from mmcached.shm.ring.key_index import key_digest
from mmcached.wire.errors import InvalidRequest, RemoteProtocolError
from tests.client.fork_child import in_child
from tests.client.records import is_equal, numbers
from tests.client.services import StoreService
from tests.house import REPOSITORY
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually, small_config
from tests.present import present
from tests.shm.include.compiling import WARNINGS, compile_c

SOURCE = REPOSITORY / "shm" / "native" / "mmcached_native.c"
RECORDS: dict[str, dict[str, Any]] = {
    "one tensor": {"x": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "plain values": {"n": 1, "s": "ü", "b": b"\0", "f": 0.5, "none": None, "yes": True, "x": np.zeros((), np.int64)},
    "nested": {"inner": {"x": np.ones(3), "list": [1, np.zeros(2)]}, "y": np.ones(1)},
    "no tensor": {"n": [1, 2]},
    "an empty tensor": {"x": np.zeros((0, 4)), "y": np.ones(2)},
    "many": {f"x{number}": np.full(number + 1, number, np.uint16) for number in range(70)},
    "bfloat16": {"x": torch.tensor([[1.0, -2.0]], dtype=torch.bfloat16)},
    "large": {"x": np.full(200_000, 7, np.uint8)},
}
DEADLINE_S = 60


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        pytest.skip("no Python.h: the extension is not tested")
    # Methods are functions with fewer parameters than PyCFunction.
    flags = [*WARNINGS, "-Wno-cast-function-type", "-Wno-pedantic", "-O1", "-shared", "-fPIC", f"-isystem{include}"]
    return compile_c(SOURCE, tmp_path_factory.mktemp("native") / "mmcached_native.abi3.so", *flags)


@pytest.fixture(scope="session")
def module(library: Path) -> ModuleType:
    spec = present(importlib.util.spec_from_file_location("mmcached_native", library))
    loaded = importlib.util.module_from_spec(spec)
    present(spec.loader).exec_module(loaded)
    return loaded


@pytest.fixture
def native(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients that are made from now on read in C."""
    monkeypatch.setattr(native_session, "native", module)
    monkeypatch.setenv("MMCACHED_NATIVE", "1")


@pytest.fixture
def in_c(native: None, service: StoreService, run_dir: Path) -> Iterator[Client]:
    with Client(run_dir, fail_open=False) as client:
        client.put("first contact", numbers(0))
        assert isinstance(session_of(client), NativeSession)
        yield client


def session_of(client: Client) -> StoreSession:
    return present(client._calls.contact._sessions.present)


def no_leases(service: StoreService, client: Client) -> None:
    gc.collect()
    assert service.leases == 0
    assert len(session_of(client)._returns) == 0
    assert present(session_of(client)._reader).taken_bytes == 0


@pytest.fixture
def both(service: StoreService, run_dir: Path, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client that reads in Python, and one that reads in C."""
    monkeypatch.setattr(native_session, "native", module)
    with contextlib.ExitStack() as stack:
        made = []
        for switch in "01":
            monkeypatch.setenv("MMCACHED_NATIVE", switch)
            made.append(stack.enter_context(Client(run_dir, fail_open=False)))
            made[-1].put("first contact", numbers(0))
        yield made


@pytest.mark.parametrize("tensors", ["numpy", "torch", "bytes"])
@pytest.mark.parametrize("name", RECORDS)
def test_a_hit_equals_that_of_the_reader_in_python(service: StoreService, both: Any, name: str, tensors: Any) -> None:
    both[0].put(name, RECORDS[name])
    for view in (True, False):
        found: list[Any] = []
        for client in (*both, both[1]):  # the last finds the plan of the second
            try:
                found.append(present(client.get(name, view=view, tensors=tensors)))
            except InvalidRequest as error:
                found.append(str(error))
        if isinstance(found[0], str):
            assert found == found[:1] * 3
        else:
            assert all(is_equal(hit.record, found[0].record) for hit in found)
            assert [hit.token for hit in found] == [found[0].token] * 3
            assert (found[0].token is not None) == view
            assert [repr(hit) for hit in found] == [repr(found[0])] * 3
            assert [list(map(flags, hit.record.values())) for hit in found] == [
                list(map(flags, found[0].record.values()))
            ] * 3
        found.clear()
    assert service.leases == 0


def flags(value: object) -> object:
    return (value.flags.writeable, value.dtype, value.shape) if isinstance(value, np.ndarray) else type(value)


def test_many_keys_and_misses_are_counted(in_c: Client, service: StoreService) -> None:
    in_c.put("ünïcödé/☃", numbers(1))

    def counted() -> tuple[int, int]:
        found: list[tuple[int, int]] = []
        service.call(lambda: found.append((service.desk.stats().hits, service.desk.stats().queries)))
        return found[0]

    before = counted()
    found = in_c.get_many(["ünïcödé/☃", "none", "first contact"], view=True, tensors="numpy")
    assert [hit and hit["seed"] for hit in found] == [1, None, 0]
    assert in_c.contains_many(["ünïcödé/☃", "none"]) == [True, False]
    assert service.leases == 2
    found.clear()
    no_leases(service, in_c)
    eventually(counted, lambda now: now == (before[0] + 2, before[1] + 3), "hits and misses are counted")


def test_a_record_expires(in_c: Client) -> None:
    in_c.put("k", numbers(1), ttl_s=0.2)
    eventually(lambda: in_c.get("k"), lambda hit: hit is None, "it expires")
    assert in_c.contains_many(["k"]) == [False]


def test_a_lease_is_handed_on_by_its_token(in_c: Client, service: StoreService, run_dir: Path) -> None:
    in_c.put("k", numbers(1))
    hit = present(in_c.get("k", view=True, tensors="numpy"))
    in_c.drop("k")
    with Client(run_dir, fail_open=False) as other:
        again = present(other.open(present(hit.token), view=True, tensors="numpy"))
        del hit
        assert is_equal(again.record, numbers(1))
        assert service.leases == 1
        del again
        no_leases(service, other)


def test_a_view_outlives_its_client(in_c: Client, service: StoreService) -> None:
    hit = present(in_c.get("first contact", view=True, tensors="numpy"))
    in_c.close()
    assert is_equal(hit.record, numbers(0))
    assert service.leases == 1
    hit.close()
    gc.collect()
    assert service.leases == 0


def test_an_invalid_record_is_an_error_and_costs_no_lease(in_c: Client, service: StoreService) -> None:
    session = session_of(in_c)
    handle = present(session._store.reader.look.find(key_digest(store_key("", "first contact"))))
    path = Path(f"/dev/shm{present(session.ring).data_name}")
    with path.open("r+b") as file:
        file.seek(handle.offset + 3)
        file.write(b"?")
    for view in (True, False):
        with pytest.raises(RemoteProtocolError):
            in_c.get("first contact", view=view, tensors="numpy")
    no_leases(service, in_c)


def test_threads_take_and_end_leases(in_c: Client, service: StoreService) -> None:
    keys = [f"k{number}" for number in range(8)]
    for key in keys:
        in_c.put(key, numbers(1))
    queue: list[Any] = []

    def read() -> None:
        for _ in range(200):
            queue.append(in_c.get_many(keys, view=True, tensors="numpy"))  # they end in any thread
            with contextlib.suppress(IndexError):
                queue.pop(0)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    queue.clear()
    no_leases(service, in_c)


def test_a_client_that_is_closed_while_others_read_ends_its_leases(
    native: None, service: StoreService, run_dir: Path
) -> None:
    for _ in range(20):
        client = Client(run_dir, fail_open=True)
        client.put("k", numbers(1))
        is_started = threading.Event()

        def read(client: Client = client, is_started: threading.Event = is_started) -> None:
            with contextlib.suppress(Exception):
                while True:
                    client.get_many(["k"] * 50, view=True, tensors="numpy")
                    is_started.set()

        thread = threading.Thread(target=read)
        thread.start()
        assert is_started.wait(DEADLINE_S)
        client.close()
        thread.join(DEADLINE_S)
    gc.collect()
    assert service.leases == 0


# ---- forks and kills


def test_a_lease_that_is_out_at_a_fork_stays_until_both_have_let_go(in_c: Client, service: StoreService) -> None:
    in_c.put("k", numbers(1))
    hits = [present(in_c.get("k", view=True, tensors="numpy"))]
    ready, go_on = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            signal.alarm(DEADLINE_S)
            os.write(ready[1], b"x")
            os.read(go_on[0], 1)
            os.write(ready[1], b"y" if is_equal(hits[0].record, numbers(1)) else b"n")
            hits.clear()
            os.read(go_on[0], 1)
        os._exit(0)
    assert os.read(ready[0], 1) == b"x"
    hits.clear()
    assert service.leases == 1, "the child reads"
    assert present(in_c.get("k", view=True, tensors="numpy"))["seed"] == 1  # with another entry
    os.write(go_on[1], b"x")
    assert os.read(ready[0], 1) == b"y"
    eventually(lambda: service.leases, lambda leases: leases == 0, "the child has let go")
    os.write(go_on[1], b"x")
    os.waitpid(pid, 0)
    for fd in (*ready, *go_on):
        os.close(fd)


def test_a_fork_without_a_lease_changes_nothing(in_c: Client, service: StoreService) -> None:
    former = session_of(in_c)
    assert in_child(lambda: present(in_c.get("first contact", tensors="numpy"))["seed"]) == 0
    assert present(in_c.get("first contact", view=True, tensors="numpy"))["seed"] == 0
    assert session_of(in_c) is former
    no_leases(service, in_c)


HOLDER = """
import sys
from mmcached.client import Client
from mmcached.client.store.native_session import NativeSession
client = Client(sys.argv[1], fail_open=False)
hit = client.get("k", view=True, tensors="numpy")
assert isinstance(client._calls.contact._sessions.present, NativeSession)
print(hit["seed"], flush=True)
sys.stdin.read()
"""


def test_the_leases_of_a_killed_reader_end(library: Path, run_dir: Path) -> None:
    with LoneFrontend(run_dir, small_config()) as frontend, Client(run_dir, fail_open=False) as client:
        client.put("k", numbers(3))
        path = os.pathsep.join([str(library.parent), *sys.path])
        reader = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "MMCACHED_NATIVE": "1"},
        )
        with reader:
            assert present(reader.stdout).readline() == b"3\n"
            eventually(lambda: frontend.stats().store.ring.leases, lambda leases: leases == 1, "the lease is seen")
            reader.kill()
            reader.wait(DEADLINE_S)
        frontend.at_rest()


# ---- the switch


def test_the_switch(module: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(native_session, "native", None)
    monkeypatch.delenv("MMCACHED_NATIVE", raising=False)
    assert session_type() is StoreSession
    monkeypatch.setenv("MMCACHED_NATIVE", "1")
    with pytest.raises(ImportError, match="not installed"):
        session_type()
    monkeypatch.setattr(native_session, "native", module)
    assert session_type() is NativeSession
    monkeypatch.delenv("MMCACHED_NATIVE")
    assert session_type() is NativeSession
    monkeypatch.setattr(native_session, "LAYOUT_VERSION", 99)
    assert session_type() is StoreSession
    assert "upgrade both together" in caplog.text
    monkeypatch.setenv("MMCACHED_NATIVE", "0")
    assert session_type() is StoreSession
