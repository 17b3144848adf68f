"""Measures the first token about an image that another server has encoded, and how soon others can read a new output.

Two servers of vLLM each share by our connector, by our connector and processed inputs, and by ECExampleConnector in
/dev/shm. One encodes an image; some time after its answer another one of its kind is asked, and then about a text of as
many tokens, whose time is subtracted. vLLM's own metrics divide the difference: waiting in the scheduler, computing,
and the rest, which is mostly the API process. Servers that are not asked are stopped meanwhile, because idle ones
still use a core each. Two checkpoints: embeddings of 128 numbers, and of 3,584. ECCPUConnector
needs vLLM's second model runner, which does not run on a CPU; LMCache 0.5.6 has no connector that vLLM can be given.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from mmcached.client import Client
from scripts.bench.adapters_servers import (
    SMALL_TOWER,
    about,
    first_token_ms,
    make_checkpoint,
    start_servers,
    start_store,
    words,
)
from scripts.bench.harness import Row, row
from tests.hosts.prompts import text
from tests.hosts.vllm.servers import VllmServer, mmcached

EXAMPLE = "ECExampleConnector in /dev/shm"
CONNECTOR, BOTH = "ours", "ours with processed inputs"
DELAYS_S = (0.0, 0.5, 3.0)
STORE_GB = 4.0
"""Processed items have up to 19 MB."""
SAVED_IN_MS, SAVED_LIMIT = 20.0, "20 ms"
SAVED_S = 60.0
LONG_TEXT = 400
PARTS = {"queue": "vllm:request_queue_time_seconds_sum", "prefill": "vllm:request_prefill_time_seconds_sum"}
"""vLLM's sums of seconds, by the part of a request's time."""
_numbers = count(10_000)

Times = Mapping[str, float]


@dataclass(frozen=True)
class Shape:
    """A checkpoint and its images.

    Attributes:
        width: Numbers of an embedding.
        sides: Pixels of the sides of its images.
        pixels_per_row: Along an edge.
    """

    width: int
    sides: tuple[int, ...]
    pixels_per_row: int
    kind: str
    words: tuple[str, ...] = ()

    def rows(self, side: int) -> int:
        return (side // self.pixels_per_row) ** 2


SHAPES = (
    Shape(128, (448, 1792), 28, "qwen2_5_vl"),
    Shape(3584, (448, 1024), 32, "qwen3_vl", ("--text-width", "3584")),
)


def rows(num_rounds: int) -> Iterator[Row]:
    for shape in SHAPES:
        with ExitStack() as stack:
            yield from _of_shape(stack, shape, num_rounds)


def what_of(delay_s: float, part: str = "") -> str:
    begin = "first token less text's" if not part else f"{part}, less text's"
    return f"{begin}, encoded by another server {delay_s} s before"


def params_of(shape: Shape, side: int) -> str:
    return f"{side} px, {shape.rows(side):,} × {shape.width:,}"


def _of_shape(stack: ExitStack, shape: Shape, num_rounds: int) -> Iterator[Row]:
    store, side = start_store(stack, STORE_GB), max(shape.sides)
    checkpoint = make_checkpoint(stack, *SMALL_TOWER, *shape.words, kind=shape.kind, max_pixels=side * side)
    usual = {"max-num-batched-tokens": 8192, "max-model-len": 8192, "mm-processor-cache-gb": 4}
    ours, example = usual | mmcached(store), usual | _example(stack)
    processed = {"MMCACHED_PROCESSED_INPUTS": str(store)}
    servers = start_servers(stack, [ours, ours, ours, example, example], checkpoint, [processed, {}, processed, {}, {}])
    first, plain, both, its_first, its_second = servers
    sides = {CONNECTOR: (first, plain), BOTH: (first, both), EXAMPLE: (its_first, its_second)}
    for side, delay_s in itertools.product(shape.sides, DELAYS_S):
        found: dict[str, list[Times]] = {name: [] for name in sides}
        for number in range(num_rounds):
            for name in [*sides][:: 1 if number % 2 else -1]:
                with _alone(sides[name], servers):
                    found[name].append(_transfer(*sides[name], shape, side, delay_s))
        yield from _rows(found, shape, side, delay_s)
    for side in shape.sides:
        with _alone((first,), servers):
            taken = [_saved_ms(store, first, side) for _ in range(num_rounds)]
        yield row(
            "new output is readable, after the answer of the server that made it, which goes on decoding",
            params_of(shape, side),
            statistics.median(taken),
            "ms",
            peer=SAVED_LIMIT,
            peer_value=SAVED_IN_MS,
        )


def _rows(found: Mapping[str, list[Times]], shape: Shape, side: int, delay_s: float) -> Iterator[Row]:
    medians = {
        name: {part: statistics.median(each[part] for each in times) for part in times[0]}
        for name, times in found.items()
    }
    for name in (CONNECTOR, BOTH):
        for part, ms in medians[name].items():
            what = f"{what_of(delay_s, part)}, {name}"
            yield row(what, params_of(shape, side), ms, "ms", peer=EXAMPLE, peer_value=medians[EXAMPLE][part])


def _example(stack: ExitStack) -> dict[str, Any]:
    """Return the options of a server with vLLM's own connector, whose files lie in /dev/shm."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mmc-"))
    extra = {"shared_storage_path": folder}
    transfer = {"ec_connector": "ECExampleConnector", "ec_role": "ec_both", "ec_connector_extra_config": extra}
    return {"ec-transfer-config": transfer}


@contextmanager
def _alone(asked: Sequence[VllmServer], servers: Sequence[VllmServer]) -> Iterator[None]:
    """Stop all processes of the other servers meanwhile."""
    others = [server for server in servers if server not in asked]
    for server in others:
        os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in others:
            os.killpg(server.process.pid, signal.SIGCONT)


def _transfer(first: VllmServer, second: VllmServer, shape: Shape, side: int, delay_s: float) -> Times:
    """Have one server encode a new image; return the time of the other one's first token, less that of a text, ms."""
    number = next(_numbers)
    first.ask(about(number, side), max_tokens=1)
    time.sleep(delay_s)
    of_image = _parts_ms(second, about(number, side))
    of_text = _parts_ms(second, words(shape.rows(side)))
    return {part: ms - of_text[part] for part, ms in of_image.items()}


def _parts_ms(server: VllmServer, message: Any) -> dict[str, float]:
    """Return the time to the first token, as "", and its parts."""
    before = _sums(server)
    whole = first_token_ms(server, message)
    parts = {part: 1000 * (after - before[part]) for part, after in _sums(server).items()}
    return {"": whole, **parts, "rest": whole - sum(parts.values())}


def _sums(server: VllmServer) -> dict[str, float]:
    page = server.call("GET", "/metrics").decode()
    found = {part: re.search(rf"^{re.escape(name)}{{.*}} (\S+)$", page, re.MULTILINE) for part, name in PARTS.items()}
    return {part: float(line[1]) if line else 0.0 for part, line in found.items()}


def _saved_ms(run_dir: Path, server: VllmServer, side: int) -> float:
    """Return how long after the first token about a new image its output can be read; less than 0: before it.

    The server decodes another answer meanwhile. Its answer about the image takes some ms from the step to here.
    """
    with Client(run_dir) as client:
        before = set(client.keys("encoder/*"))
        readable_at: list[float] = []

        def watch() -> None:
            give_up = time.monotonic() + SAVED_S
            while not set(client.keys("encoder/*")) - before and time.monotonic() < give_up:
                time.sleep(0.0005)
            readable_at.append(time.monotonic())

        def decode() -> None:
            server.ask([text("Tell me more.")], max_tokens=LONG_TEXT)

        threads = [threading.Thread(target=each) for each in (watch, decode)]
        for thread in threads:
            thread.start()
        server.ask(about(next(_numbers), side), max_tokens=1)
        answered_at = time.monotonic()
        for thread in threads:
            thread.join()
    return 1000 * (readable_at[0] - answered_at)
