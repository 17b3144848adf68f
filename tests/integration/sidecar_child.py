"""A client process of the sidecar, without torch; run by path: `sidecar_child.py ROLE RUN_DIR NUMBER`.

compute   ready -> (a line) -> get_or_compute of one key -> what came, as JSON
hold      ready -> (a line) -> claims "claimed", takes a lease of "held" -> its token; until it is killed
fulfil    ready -> (a line) -> puts "claimed" -> whether it is stored
traffic   random verbs until the input ends; every byte is judged, a wrong one ends it with status 1
"""

from __future__ import annotations

import json
import random
import select
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.client import Claim, Client
from mmcached.wire.process.death import arm_from_environment

NUM_KEYS = 40
MAX_NUMBERS = 100_000
HELD_VIEWS = 4


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def record_of(number: int) -> dict[str, Any]:
    """Return the one record that key `number` may have."""
    rng = np.random.default_rng(number)
    return {"number": number, "x": rng.integers(0, 1 << 62, rng.integers(1, MAX_NUMBERS), np.int64)}


def judge(number: int, record: dict[str, Any]) -> None:
    wanted = record_of(number)
    if record["number"] != number or not np.array_equal(record["x"], wanted["x"]):
        say(wrong=number, got=record["number"])
        sys.exit(1)


def compute(client: Client, number: int) -> None:
    say(ready=number)
    sys.stdin.readline()

    def fn() -> dict[str, Any]:
        say(computing=number)
        sys.stdin.readline()  # until the others wait, or for ever
        return record_of(number)

    record = client.get_or_compute("one key", fn, tensors="numpy")
    say(number=record["number"], sum=int(record["x"].sum() % (1 << 40)))


def hold(client: Client, number: int) -> None:
    say(ready=number)
    sys.stdin.readline()
    (claim,) = client.claim_many(["claimed"])
    hit = client.get("held", view=True, tensors="numpy")
    say(claim=isinstance(claim, Claim) and claim.is_exclusive, token=hit and hit.token)
    sys.stdin.readline()


def fulfil(client: Client, number: int) -> None:
    say(ready=number)
    sys.stdin.readline()
    say(stored=bool(client.put("claimed", record_of(number))))


def traffic(client: Client, seed: int) -> None:
    rng = random.Random(seed)
    held: list[tuple[int, dict[str, Any]]] = []
    num_calls = 0
    say(ready=seed)
    while not select.select([sys.stdin], [], [], 0)[0]:
        numbers = [rng.randrange(NUM_KEYS) for _ in range(rng.choice([1, 1, 1, 4]))]
        keys = [f"k{number}" for number in numbers]
        match rng.choice(["get", "get", "view", "view", "compute", "compute", "put", "contains", "drop"]):
            case "get":
                for number, hit in zip(numbers, client.get_many(keys, tensors="numpy"), strict=True):
                    if hit is not None:
                        judge(number, hit.record)
            case "view":
                hits = client.get_many(keys, view=True, tensors="numpy")
                held += [(number, hit.record) for number, hit in zip(numbers, hits, strict=True) if hit is not None]
            case "compute":
                judge(numbers[0], client.get_or_compute(keys[0], lambda: record_of(numbers[0]), tensors="numpy"))  # noqa: B023
            case "put":
                client.put(keys[0], record_of(numbers[0]))
            case "contains":
                client.contains_many(keys)
            case "drop":
                if rng.random() < 0.2:
                    client.drop(keys[0])
        while len(held) > HELD_VIEWS:
            judge(*held.pop(rng.randrange(len(held))))  # long after the call, and others have been evicted meanwhile
        num_calls += 1
    for number, record in held:
        judge(number, record)
    counters = client.store_counters()
    say(calls=num_calls, hits=counters.hits, inline=counters.inline_hits, failures=counters.failures)


def main(role: str, run_dir: Path, number: int) -> None:
    with Client(run_dir) as client:
        {"compute": compute, "hold": hold, "fulfil": fulfil, "traffic": traffic}[role](client, number)


if __name__ == "__main__":
    arm_from_environment()
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
