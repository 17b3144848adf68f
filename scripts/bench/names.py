"""Measures pictures that callers know by name, beside the same pictures as files.

input     from a call until a picture can be sent to an engine: by name, with its item cached; and as a new file, which
          is read, decoded and processed. The client's side and the frontend's loop, without the socket between them
answer    an embedding that the store has, by the name of a file; and the same file, of a service without caches
at once   64 requests at once for one new URL: downloads, decodings, and the time, beside callers that download each for
          themselves; the server is in this process

Files opened are those of the picture, as Python's audit hook sees them.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from mmcached.client import AsyncClient, Client, Url
from mmcached.client.media_files import read_file
from mmcached.gateway.processing.media import Medium
from scripts.bench import harness
from scripts.bench.encode import runs, service
from scripts.bench.harness import Bound, Row, compare, row
from scripts.bench.media import NO_CACHES
from scripts.bench.processing import loop, photograph

ROUNDS, QUICK_ROUNDS = 9, 3
NUM_CALLS = 50
NUM_NEW = 4
SIZES_MPX = {"448 x 448": 0.2, "1,792 x 1,792": 3.2}
NUM_AT_ONCE, NUM_CLIENTS = 64, 4
INPUT = "from the call to the engine's input"
NEW_FILE = "a new file"
FILE = "the file, no caches"
AT_ONCE = f"{NUM_AT_ONCE} requests at once, one new URL"
BOUNDS = [
    *(Bound("reach", INPUT, size, NEW_FILE, 0.03) for size in SIZES_MPX),
    *(Bound("reach", "times that the file is opened", size, FILE, 0.0) for size in SIZES_MPX),
    Bound("reach", "downloads", AT_ONCE, "one", 1.0),
    Bound("reach", "decodings", AT_ONCE, "one", 1.0),
]
_numbers = count()
_opened: dict[str, int] = {}


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]) in _opened:
        _opened[str(arguments[0])] += 1


def settled_file(folder: Path, data: bytes) -> Path:
    """Return a file that is old enough to be bound."""
    path = folder / f"{next(_numbers)}.jpg"
    path.write_bytes(data)
    time.sleep(0.1)
    return path


def engine_input(num_rounds: int) -> Iterator[Row]:
    with (
        service(world_size=0) as run_dir,
        Client(run_dir) as client,
        loop(1) as made,
        tempfile.TemporaryDirectory() as folder,
    ):
        for size, mpx in SIZES_MPX.items():
            data = photograph(mpx)
            path = settled_file(Path(folder), data)
            content = client.bind(path)
            named = Medium("image", b"", "images[0]", content=content)
            made.kept.keys.add(made.processing.keys(named, "")[1])

            def ours(path: Path = path) -> float:
                began = time.perf_counter_ns()
                for _ in range(NUM_CALLS):
                    found = client.resolve(path)
                    assert found is not None
                    number = made.start(Medium("image", b"", "images[0]", content=found.content))
                    assert number not in made.waiting
                return (time.perf_counter_ns() - began) / NUM_CALLS / 1000

            def theirs(data: bytes = data) -> float:
                # A few bytes after the end of a file make it another file of the same picture.
                paths = [settled_file(Path(folder), data + b"%d" % next(_numbers)) for _ in range(NUM_NEW)]
                began = time.perf_counter_ns()
                for path in paths:
                    number = made.start(Medium("image", read_file(path, "images[0]"), "images[0]"))
                    while number in made.waiting:
                        made.serve()
                return (time.perf_counter_ns() - began) / NUM_NEW / 1000

            taken = compare({"ours": ours, "theirs": theirs}, num_rounds)
            yield row(
                "from the call to the engine's input",
                size,
                taken["ours"],
                "us",
                peer=NEW_FILE,
                peer_value=taken["theirs"],
            )


def answer(num_rounds: int) -> Iterator[Row]:
    with (
        service() as shared,
        service(**NO_CACHES) as off,
        Client(shared) as client,
        Client(off) as other,
        tempfile.TemporaryDirectory() as folder,
    ):
        for size, mpx in SIZES_MPX.items():
            path = settled_file(Path(folder), photograph(mpx))
            client.bind(path)
            client.encode([path])
            while not client.keys("encoder/*"):  # the output is saved after the answer
                time.sleep(0.01)
            _opened[str(path)] = 0
            opened = {"ours": 0, "theirs": 0}

            def ours(path: Path = path, opened: dict[str, int] = opened) -> float:
                before, began = _opened[str(path)], time.perf_counter_ns()
                for _ in range(NUM_CALLS):
                    client.encode([path], names=[path], view=True)
                opened["ours"] += _opened[str(path)] - before
                return (time.perf_counter_ns() - began) / NUM_CALLS / 1000

            def theirs(path: Path = path, opened: dict[str, int] = opened) -> float:
                before, began = _opened[str(path)], time.perf_counter_ns()
                other.encode([path])
                opened["theirs"] += _opened[str(path)] - before
                return (time.perf_counter_ns() - began) / 1000

            taken = compare({"ours": ours, "theirs": theirs}, num_rounds)
            yield row("answer by name", size, taken["ours"], "us", peer=FILE, peer_value=taken["theirs"])
            yield row(
                "times that the file is opened", size, opened["ours"], "opens", peer=FILE, peer_value=opened["theirs"]
            )


def at_once(num_rounds: int) -> Iterator[Row]:
    data = photograph(2.0)
    with service() as run_dir, downloads(data) as (address, count_of), Client(run_dir) as client:
        before = client.stats().processor.items_processed
        named: list[float] = []
        alone: list[float] = []
        num_named = 0
        for _ in range(num_rounds):
            started = count_of()
            named.append(asyncio.run(ask_all(run_dir, f"{address}/{next(_numbers)}", is_named=True)))
            num_named += count_of() - started
            runs(run_dir)  # at rest
            alone.append(asyncio.run(ask_all(run_dir, f"{address}/{next(_numbers)}", is_named=False)))
            runs(run_dir)
        num_decoded = client.stats().processor.items_processed - before
    yield row("downloads", AT_ONCE, num_named / num_rounds, "downloads", peer="one", peer_value=1)
    # Equal files are decoded once without names, too.
    yield row("decodings", AT_ONCE, num_decoded / num_rounds / 2, "decodings", peer="one", peer_value=1)
    times = {name: statistics.median(values) for name, values in (("named", named), ("alone", alone))}
    yield row("time of all answers", AT_ONCE, times["named"], "ms", peer="each downloads", peer_value=times["alone"])


async def ask_all(run_dir: Path, url: str, *, is_named: bool) -> float:
    """Return the milliseconds until all requests for the picture at an address have their embeddings."""
    clients = [AsyncClient(run_dir) for _ in range(NUM_CLIENTS)]
    for client in clients:
        await client.__aenter__()

    async def download() -> bytes:
        return await asyncio.to_thread(_download, url)

    async def ask(client: AsyncClient) -> None:
        if is_named:
            await client.bind(Url(url, '"1"'), download, keeps_file=True)
            await client.encode([None], names=[Url(url, '"1"')])
        else:
            await client.encode([await download()])

    began = time.perf_counter()
    await asyncio.gather(*(ask(clients[number % NUM_CLIENTS]) for number in range(NUM_AT_ONCE)))
    taken = time.perf_counter() - began
    for client in clients:
        await client.close()
    return taken * 1e3


def _download(url: str) -> bytes:
    with urlopen(url) as response:
        data: bytes = response.read()
    return data


@contextmanager
def downloads(data: bytes) -> Iterator[tuple[str, Any]]:
    """Serve a picture that differs in its last bytes at each path; yield the address, and the count of downloads."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(data + self.path.encode())

        def log_request(self, *values: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.request_queue_size = NUM_AT_ONCE
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", lambda: len(paths)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


SECTIONS = {"input": engine_input, "answer": answer, "at once": at_once}


if __name__ == "__main__":
    sys.addaudithook(_note_opened)
    harness.main("names of media", SECTIONS, lambda undo: SECTIONS, rounds=(ROUNDS, QUICK_ROUNDS), bounds=BOUNDS)
