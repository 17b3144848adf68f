"""Measures the adapter for vLLM: its connector beside vLLM's own, and whole servers with it and without.

connector   ECExampleConnector writes safetensors files, here in /dev/shm: it has no limit and no eviction, and nobody
            knows whether a file is whole or of which model. It maps a file and copies nothing; so that a copy to a
            device is not left out, a row reads each loaded item too.
servers     the time to the first token of vLLM's OpenAI server on the CPU, over HTTP: a tiny Qwen2.5-VL with a vision
            tower of 124 M parameters, images of 448 pixels. One server has nothing of ours; of two others that share a
            store one encodes an image, then the other is asked about it. All take turns. No server keeps processed
            images, so that one whose output lies in its own encoder cache is decoded and processed as a new one is:
            what is more than that is ours. Every prompt begins otherwise, so that none has a prefix in the KV cache.
new         the same for images that nobody has encoded, with a tower that takes next to nothing: pairs of requests, one
            to each server, in turns; the ratio of each pair.
transfers   the first token about an image that another server has encoded, beside ECExampleConnector, and how soon
            others can read a new output; `--quick` takes ten minutes
processing  what vLLM's API process does for an image before it is scheduled, with shared processed items and without.

Runs in the environment of `make test-vllm`: `.venv-vllm/bin/python -m scripts.bench.adapters`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from mmcached.client import Client
from scripts.bench import adapters_transfers, harness
from scripts.bench.adapters_servers import (
    SIDE,
    SMALL_IMAGE,
    SMALL_TOWER,
    about,
    first_token_ms,
    make_checkpoint,
    start_servers,
    start_store,
    words,
)
from scripts.bench.adapters_transfers import BOTH, EXAMPLE, what_of
from scripts.bench.harness import Bound, Row, Unavailable, compare, row, wall_us
from tests.hosts.prompts import image, text
from tests.hosts.vllm.servers import VllmServer, mmcached

CONNECTOR, SERVERS, NEW, TRANSFERS, PROCESSING = "connector", "servers", "new", "transfers", "processing"
LOOK_UP = "look up"
OFF, TEXT_ONLY, WANTED = "without mmcached", "text only, as many tokens", "reach"
OWN = "in vLLM's own encoder cache"
ITEM, IMAGE = "4.7 MiB", "448 px, 124 M tower"
KNOWN, UNKNOWN = "first token, image that another server has encoded", "first token, image that nobody has encoded"
NUM_ITEMS = 12
CALLS = 10
ROUNDS, QUICK_ROUNDS = 20, 5
PAIRS_PER_ROUND = 10
"""Of requests about new images with the small tower: a hundredth of the time of one is far below its noise."""
TOWER = ("--depth", "12", "--width", "768")
IMAGE_TOKENS = (SIDE // 28) ** 2 + 2
NUM_REPLICA_IMAGES = 64
REPLICA_SIDE = 112
LOOK_UP_US = 25.0
SAVED_S = 60.0
BOUNDS = [
    Bound("reach", "look up, lease, load, give back", ITEM, EXAMPLE, 0.5),
    Bound("reach", LOOK_UP, ITEM, WANTED, 1.0),
    Bound("reach", "save, as the step sees it", ITEM, EXAMPLE, 0.2),
    Bound("reach", "the same, and read", ITEM, EXAMPLE, 1.0),
    Bound("reach", KNOWN, IMAGE, OFF, 0.05),
    Bound("reach", KNOWN, IMAGE, TEXT_ONLY, 1.5),
    Bound("reach", KNOWN, IMAGE, OWN, 1.15),
    Bound("reach", f"{UNKNOWN}, median of pairs", IMAGE, OFF, 1.03),
    Bound("reach", f"{UNKNOWN}, median of pairs", SMALL_IMAGE, OFF, 1.03),
    Bound("reach", "picture that the host has processed", "1792 px", OFF, 0.05),
    Bound("reach", "name alone of a picture that the host knows", "1792 px", f"{OFF}, from the file", 0.03),
    Bound("reach", "new picture, median of pairs", "1792 px", OFF, 1.03),
    *(
        Bound("reach", f"{what_of(delay_s)}, {BOTH}", adapters_transfers.params_of(shape, side), EXAMPLE, 0.5)
        for shape in adapters_transfers.SHAPES
        for side in shape.sides
        for delay_s in adapters_transfers.DELAYS_S
    ),
    Bound("reach", "tower runs of 2 servers", f"the same {NUM_REPLICA_IMAGES} images", "images", 1.0),
]


# ---- the connector alone


def compare_connectors(num_rounds: int) -> Iterator[Row]:
    try:
        from scripts.bench import adapters_steps as steps
    except ImportError as error:
        raise Unavailable(f"vLLM is not installed here: {error}") from error
    with ExitStack() as stack:
        run_dir, checkpoint = start_store(stack), make_checkpoint(stack, "--depth", "4")
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
    with ExitStack() as stack:
        run_dir = start_store(stack)
        off, first, second = start_servers(
            stack, [{}, mmcached(run_dir), mmcached(run_dir)], make_checkpoint(stack, *TOWER)
        )
        yield from _first_tokens(off, first, second, run_dir, num_rounds)
        yield _tower_runs([first, second])


def compare_new_images(num_rounds: int) -> Iterator[Row]:
    with ExitStack() as stack:
        off, ours = start_servers(stack, [{}, mmcached(start_store(stack))], make_checkpoint(stack, *SMALL_TOWER))
        pairs = [_pair(off, ours, number) for number in range(num_rounds * PAIRS_PER_ROUND)]
        yield from _ratios(SMALL_IMAGE, pairs)


def compare_processing(num_rounds: int) -> Iterator[Row]:
    try:
        from scripts.bench import adapters_processing
    except ImportError as error:
        raise Unavailable(f"vLLM is not installed here: {error}") from error
    with ExitStack() as stack:
        side = max(adapters_processing.SIDES)
        checkpoint = make_checkpoint(stack, max_pixels=side * side)
        yield from adapters_processing.rows(checkpoint, start_store(stack, adapters_transfers.STORE_GB), num_rounds)


def _pair(off: VllmServer, ours: VllmServer, number: int) -> tuple[float, float]:
    """Return how long the first token about a new image takes, ms: with the adapter and without, in turns."""
    message = about(1000 + number)
    if number % 2:
        return first_token_ms(ours, message), first_token_ms(off, message)
    without = first_token_ms(off, message)
    return first_token_ms(ours, message), without


def _ratios(params: str, pairs: list[tuple[float, float]]) -> Iterator[Row]:
    ratios = statistics.quantiles([ours / off for ours, off in pairs], n=4)
    for name, ratio in zip(("lower quartile", "median", "upper quartile"), ratios, strict=True):
        yield row(f"{UNKNOWN}, {name} of pairs", params, ratio, "×", peer=OFF, peer_value=1.0)


def _first_tokens(
    off: VllmServer, first: VllmServer, second: VllmServer, run_dir: Path, num_rounds: int
) -> Iterator[Row]:
    found: dict[str, list[float]] = {"loads": [], TEXT_ONLY: [], OWN: []}
    pairs: list[tuple[float, float]] = []
    for number in range(num_rounds):
        pairs.append(_pair(off, first, number))
        _wait_for_saves(run_dir, first)
        second.ask([text("What?")], max_tokens=1)  # it has had nothing to do
        found["loads"].append(first_token_ms(second, about(1000 + number)))
        found[TEXT_ONLY].append(first_token_ms(second, words(IMAGE_TOKENS)))
        found[OWN].append(first_token_ms(second, about(1000 + number)))
    median = {name: statistics.median(times) for name, times in found.items()}
    median[OFF] = statistics.median(without for _, without in pairs)
    for peer in (OFF, TEXT_ONLY, OWN):
        yield row(KNOWN, IMAGE, median["loads"], "ms", peer=peer, peer_value=median[peer])
    yield from _ratios(IMAGE, pairs)


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


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # servers beside each other on few cores
    harness.main(
        "the adapter for vLLM: its connector and whole servers",
        [CONNECTOR, SERVERS, NEW, TRANSFERS, PROCESSING],
        lambda undo: {
            CONNECTOR: compare_connectors,
            SERVERS: compare_servers,
            NEW: compare_new_images,
            TRANSFERS: adapters_transfers.rows,
            PROCESSING: compare_processing,
        },
        rounds=(ROUNDS, QUICK_ROUNDS),
        bounds=BOUNDS,
    )
