"""Peers that hand a tensor from one process to another on this host, for `sidecar`: one puts, this process gets.

Mooncake Store    its master, and a process that lends it memory and puts; here a copy is got over TCP into one
                  registered buffer. Wants libibverbs and libnl beside its wheel
Ray's store       an actor puts; what is got lies in Ray's shared memory and is read in place

A peer that is not installed, or does not start, is left out, and a line says so.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.harness import tell_once

MOONCAKE, RAY = "Mooncake Store", "Ray's store"
LENT_BYTES = 256 << 20
BUFFER_BYTES = 64 << 20
STARTS_WITHIN_S = 30.0

Get = Callable[[], Any]


@contextlib.contextmanager
def gets(sizes: Sequence[int]) -> Iterator[dict[str, dict[int, Get]]]:
    """Start the peers; yield what gets a tensor of each size from another process, by peer."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, start in ((MOONCAKE, _mooncake), (RAY, _ray)):
            try:
                found[name] = stack.enter_context(start(sizes))
            except (ImportError, OSError, RuntimeError) as error:
                tell_once(f"rows are left out: {name}: {str(error).splitlines()[0][:120]}")
        yield found


@contextlib.contextmanager
def mooncake_master() -> Iterator[int]:
    """Run a master of Mooncake Store; yield its port."""
    importlib.import_module("mooncake.store")  # before anything is started for it
    port = _free_port()
    with _running(mooncake_program("mooncake_master"), f"-rpc_port={port}", f"-metrics_port={_free_port()}") as master:
        _await_port(port, master)
        yield port


def mooncake_program(name: str) -> str:
    """Return the path of a program of Mooncake's wheel."""
    return str(Path(importlib.import_module("mooncake").__path__[0]) / name)


@contextlib.contextmanager
def mooncake_lender(port: int) -> Iterator[None]:
    """Run a process that lends memory to the store of a master."""
    own = ("-metadata_server=P2PHANDSHAKE", "-host=127.0.0.1", f"-port={_free_port()}", "-protocol=tcp")
    master, lent = f"-master_server_address=127.0.0.1:{port}", f"-global_segment_size={LENT_BYTES >> 20}MB"
    with _running(mooncake_program("mooncake_client"), master, lent, *own):
        store = mooncake_store(port, 0)
        try:
            give_up = time.monotonic() + STARTS_WITHIN_S
            while store.put("is there memory?", b"?"):
                if time.monotonic() > give_up:
                    raise RuntimeError("the process that lends memory has not started")
                time.sleep(0.1)
        finally:
            store.close()
        yield


@contextlib.contextmanager
def _running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def _mooncake(sizes: Sequence[int]) -> Iterator[dict[int, Get]]:
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(mooncake_master())
        command = [sys.executable, "-m", "scripts.bench.stores", str(port), *map(str, sizes)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        stack.callback(_end, holder)
        if holder.stdout is None or b"ready\n" not in iter(holder.stdout.readline, b""):
            raise RuntimeError("the process that puts has not started")
        store = mooncake_store(port, 0)
        stack.callback(store.close)
        target = np.zeros(max(sizes), np.uint8)
        store.register_buffer(target.ctypes.data, target.nbytes)

        def get(size: int) -> Any:
            if store.get_into(str(size), target.ctypes.data, size) != size:
                raise RuntimeError(f"Mooncake has lost {size} bytes")
            return target[size - 1]

        yield {size: partial(get, size) for size in sizes}


def mooncake_store(port: int, lent_bytes: int) -> Any:
    """Return Mooncake's own client."""
    store = importlib.import_module("mooncake.store").MooncakeDistributedStore()
    status = store.setup("127.0.0.1", "P2PHANDSHAKE", lent_bytes, BUFFER_BYTES, "tcp", "", f"127.0.0.1:{port}")
    if status:
        raise RuntimeError(f"Mooncake's client has not started: {status}")
    return store


def _hold(port: int, sizes: Sequence[int]) -> None:
    """Put tensors into Mooncake, and live until the input ends."""
    store = mooncake_store(port, LENT_BYTES)
    source = np.random.default_rng(0).integers(0, 256, max(sizes), np.uint8)
    store.register_buffer(source.ctypes.data, source.nbytes)
    for size in sizes:
        if store.put_from(str(size), source.ctypes.data, size):
            raise SystemExit(f"Mooncake refuses {size} bytes")
    print("ready", flush=True)
    sys.stdin.read()
    store.close()


@contextlib.contextmanager
def _ray(sizes: Sequence[int]) -> Iterator[dict[int, Get]]:
    ray = importlib.import_module("ray")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(num_cpus=1, object_store_memory=LENT_BYTES, _temp_dir=folder, **quiet)
        try:
            put = ray.remote(num_cpus=1)(_put_into_ray)
            places = {size: ray.get(put.remote(size))[0] for size in sizes}
            yield {size: partial(_last_of, ray.get, place) for size, place in places.items()}
        finally:
            ray.shutdown()


def _put_into_ray(size: int) -> list[Any]:
    return [importlib.import_module("ray").put(np.ones(size, np.uint8))]


def _last_of(get: Callable[[Any], Any], place: Any) -> Any:
    return get(place)[-1]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    raise RuntimeError("its master does not start; it wants libibverbs1 and libnl-route-3-200")


def _end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.terminate()


if __name__ == "__main__":
    _hold(int(sys.argv[1]), [int(size) for size in sys.argv[2:]])
