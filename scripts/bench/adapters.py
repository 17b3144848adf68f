"""Measures the adapter for vLLM: its connector beside vLLM's own, and whole servers with it and without.

connector   ECExampleConnector writes safetensors files, here in /dev/shm: it has no limit and no eviction, and nobody
            knows whether a file is whole or of which model. It maps a file and copies nothing; so that a copy to a
            device is not left out, a row reads each loaded item too.
servers     the time to the first token of vLLM's OpenAI server on the CPU, over HTTP: a tiny Qwen2.5-VL with a vision
            tower of 87 M parameters, images of 448 pixels. One server has nothing of ours; of two others that share a
            store one encodes an image, then the other is asked about it. All take turns.

Runs in the environment of `make test-vllm`: `.venv-vllm/bin/python -m scripts.bench.adapters`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

from mmcached.client import Client
from scripts.bench import harness
from scripts.bench.harness import Bound, Row, Unavailable, compare, row, wall_us
from scripts.bench.sidecar_processes import frontend
from tests.hosts.prompts import Content, image, text
from tests.hosts.vllm.servers import VllmServer, mmcached

CONNECTOR, SERVERS = "connector", "servers"
LOOK_UP = "look up"
EXAMPLE = "ECExampleConnector in /dev/shm"
OFF, TEXT_ONLY, WANTED = "without mmcached", "text only, as many tokens", "reach"
ITEM, IMAGE = "4.7 MiB", "448 px, 87 M tower"
NUM_ITEMS = 12
CALLS = 10
ROUNDS, QUICK_ROUNDS = 20, 5
SIDE = 448
DEPTH, WIDTH = 12, 768
IMAGE_TOKENS = (SIDE // 28) ** 2 + 2
NUM_REPLICA_IMAGES = 64
REPLICA_SIDE = 112
LOOK_UP_US = 25.0
SAVED_S = 60.0
BOUNDS = [
    Bound("reach", "look up, lease, load, give back", ITEM, EXAMPLE, 0.5),
    Bound("reach", LOOK_UP, ITEM, WANTED, 1.0),
    Bound("reach", "save, as the step sees it", ITEM, EXAMPLE, 0.2),
    Bound("reach", "first token, image that another server has encoded", IMAGE, OFF, 0.05),
    Bound("reach", "first token, image that another server has encoded", IMAGE, TEXT_ONLY, 1.5),
    Bound("reach", "first token, image that nobody has encoded", IMAGE, OFF, 1.03),
    Bound("reach", "tower runs of 2 servers", f"the same {NUM_REPLICA_IMAGES} images", "images", 1.0),
]


# ---- the connector alone


def compare_connectors(num_rounds: int) -> Iterator[Row]:
    try:
        from scripts.bench import adapters_steps as steps
    except ImportError as error:
        raise Unavailable(f"vLLM is not installed here: {error}") from error
    with ExitStack() as stack:
        run_dir, checkpoint = _store(stack), _checkpoint(stack, "--depth", "4")
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mmc-"))
        transfers: dict[str, dict[str, Any]] = {
            "ours": mmcached(run_dir)["ec-transfer-config"],
            EXAMPLE: {
                "ec_connector": "ECExampleConnector",
                "ec_connector_extra_config": {"shared_storage_path": folder},
            },
        }
        sides = {
            name: stack.enter_context(steps.connector(checkpoint, transfer)) for name, transfer in transfers.items()
        }
        names = [steps.new_name() for _ in range(NUM_ITEMS)]
        outputs = [steps.new_output() for _ in names]
        for side in sides.values():
            for name, output in zip(names, outputs, strict=True):
                side.save_us(name, output)
                if not side.load(name).equal(output):
                    raise SystemExit("what was loaded is not what was saved")
        turns = cycle(names)
        kinds: dict[str, Callable[[Any], float]] = {
            "look up, lease, load, give back": lambda side: _per_call_us(side.load, turns),
            "the same, and read": lambda side: _per_call_us(lambda name: side.load(name).clone(), turns),
            LOOK_UP: lambda side: statistics.median(side.look_up_us(next(turns)) for _ in range(CALLS)),
            "save, as the step sees it": lambda side: side.save_us(steps.new_name(), outputs[0]),
        }
        for what, sample in kinds.items():
            found = compare({name: partial(sample, side) for name, side in sides.items()}, num_rounds)
            yield row(what, ITEM, found["ours"], "us", peer=EXAMPLE, peer_value=found[EXAMPLE])
            if what == LOOK_UP:
                yield row(what, ITEM, found["ours"], "us", peer=WANTED, peer_value=LOOK_UP_US)


def _per_call_us(call: Callable[[str], object], names: Iterator[str]) -> float:
    return statistics.median(wall_us(lambda: call(next(names))) for _ in range(CALLS))


# ---- whole servers


def compare_servers(num_rounds: int) -> Iterator[Row]:
    if find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed here")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
        run_dir = _store(stack)
        checkpoint = _checkpoint(stack, "--depth", str(DEPTH), "--width", str(WIDTH))
        options = {"max-num-batched-tokens": 2048, "no-enable-prefix-caching": True}
        servers = []
        for name, ours in (("off", {}), ("first", mmcached(run_dir)), ("second", mmcached(run_dir))):
            servers.append(VllmServer(checkpoint, folder / f"{name}.log", options | ours))
            stack.callback(servers[-1].stop)
        for server in servers:
            server.wait_until_ready()
        off, first, second = servers
        for number in range(2):
            for server in servers:
                server.ask([image(number, SIDE), text("What?")], max_tokens=1)
                server.ask([text("What?")], max_tokens=1)
        yield from _first_tokens(off, first, second, run_dir, num_rounds)
        yield _tower_runs([first, second])


def _first_tokens(off: VllmServer, first: VllmServer, second: VllmServer, run_dir: Path, num_rounds: int) -> list[Row]:
    found: dict[str, list[float]] = {OFF: [], "encodes": [], "loads": [], TEXT_ONLY: []}
    for number in range(num_rounds):
        message = [image(1000 + number, SIDE), text("What?")]
        encoding = [(OFF, off), ("encodes", first)]
        for name, server in encoding if number % 2 else reversed(encoding):
            found[name].append(_first_token_ms(server, message))
        _wait_for_saves(run_dir, first)
        found["loads"].append(_first_token_ms(second, message))
        found[TEXT_ONLY].append(_first_token_ms(second, [text("What?" + "a" * IMAGE_TOKENS)]))
    median = {name: statistics.median(times) for name, times in found.items()}
    return [
        row(f"first token, image that {who}", IMAGE, median[ours], "ms", peer=peer, peer_value=median[peer])
        for who, ours, peer in (
            ("another server has encoded", "loads", OFF),
            ("another server has encoded", "loads", TEXT_ONLY),
            ("nobody has encoded", "encodes", OFF),
        )
    ]


def _first_token_ms(server: VllmServer, message: Content) -> float:
    return wall_us(lambda: server.ask(message, max_tokens=1)) / 1000


def _wait_for_saves(run_dir: Path, server: VllmServer) -> None:
    """Return when the store has what a server has encoded."""
    wanted = len(set(server.items_encoded()))
    give_up = time.monotonic() + SAVED_S
    with Client(run_dir) as client:
        while client.stats().store.ring.puts < wanted:
            if time.monotonic() > give_up:
                raise SystemExit("the store does not get what a server encodes")
            time.sleep(0.01)


def _tower_runs(servers: list[VllmServer]) -> Row:
    """Ask all servers at once about the same images; return how often a tower has run."""
    before = sum(len(server.items_encoded()) for server in servers)
    messages = [[image(2000 + number, REPLICA_SIDE), text("What?")] for number in range(NUM_REPLICA_IMAGES)]
    with ThreadPoolExecutor(2 * len(servers)) as threads:
        asked = [threads.submit(server.ask, message) for message in messages for server in servers]
    for one in asked:
        one.result()
    runs = sum(len(server.items_encoded()) for server in servers) - before
    return row(
        f"tower runs of {len(servers)} servers",
        f"the same {NUM_REPLICA_IMAGES} images",
        runs,
        "runs",
        peer="images",
        peer_value=NUM_REPLICA_IMAGES,
    )


# ---- both


def _store(stack: ExitStack) -> Path:
    run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    stack.enter_context(frontend(run_dir))
    return run_dir


def _checkpoint(stack: ExitStack, *tower: str) -> Path:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    words = ["-m", "tests.hosts.checkpoints", "qwen2_5_vl", str(folder), "--max-pixels", str(SIDE * SIDE), *tower]
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    return folder


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # servers beside each other on few cores
    harness.main(
        "the adapter for vLLM: its connector and whole servers",
        [CONNECTOR, SERVERS],
        lambda undo: {CONNECTOR: compare_connectors, SERVERS: compare_servers},
        rounds=(ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
