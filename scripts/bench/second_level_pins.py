"""Measures what pins of clients keep, and what they cost.

pin     pinned records after traffic of several times the store, beside others; a put into a full store with pins,
        beside one without; `pin` and `unpin` of a record, beside a message to and from the service
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

import numpy as np

from mmcached.client import Client
from scripts.bench.harness import Bound, Row, calls_row, compare, row, wall_us
from scripts.bench.second_level_services import SIZE, Hosts, held, timed

FRESH, NOT_PINNED, NO_PINS, PING = "a fresh record", "a record that was not pinned", "without pins", "a ping"
STORE_GB = 1 / 16
STORE_BYTES = int(STORE_GB * (1 << 30))
NUM_LAPS = 4
"""Traffic, in sizes of the store."""
NUM_PINNED = 3
SMALL = {"x": np.zeros(32 << 10, np.uint8)}
ONE_OF = 5
"""One record of so many is pinned in a full store: less than the quarter of the store that pins may take."""
NUM_HITS, NUM_CALLS, TURNS = 20, 5, 20
"""Calls of a turn, and turns for each round: in short turns a busy machine seldom interrupts one side alone."""
PIN_S = 3600.0

BOUNDS = [
    Bound("reach", "pin", "still here", "pinned", 1.0, is_floor=True),
    Bound("reach", "pin", f"hit of {SIZE}", FRESH, 1.1),
    Bound("reach", "pin", "put of 32 KiB into a full store", NO_PINS, 1.1),
    Bound("try", "pin", "pin and unpin", PING, 2.5),
]


def pins(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    with contextlib.ExitStack() as undo:
        yield from _kept(hosts, hosts.start(undo, "pins", store_gb=STORE_GB), num_rounds)
    with contextlib.ExitStack() as undo:
        full = {name: hosts.start(undo, name, store_gb=STORE_GB, store_l2="") for name in ("pinned", "free")}
        yield from _costs(hosts, full["pinned"], full["free"], num_rounds)


def _kept(hosts: Hosts, client: Client, num_rounds: int) -> Iterator[Row]:
    """Pin some of the records of a small store, let traffic pass, and hit the pinned ones."""
    pinned, others = ([hosts.new_key() for _ in range(NUM_PINNED)] for _ in range(2))
    for key in (*pinned, *others):
        client.put(key, hosts.record)
        hosts.wait_for(key)
    _pin(client, pinned)
    for _ in range(NUM_LAPS * STORE_BYTES // hosts.record["x"].nbytes):
        client.put(key := hosts.new_key(), hosts.record)
    for params, keys in {"still here": pinned, "still here, not pinned": others}.items():
        yield row("pin", params, sum(client.contains_many(keys)), "records", peer="pinned", peer_value=NUM_PINNED)
    hosts.wait_for(key)
    client.put(fresh := hosts.new_key(), hosts.record)

    def hit(key: str) -> object:
        return client.get(key, view=True, tensors="numpy")

    def fetch() -> float:
        client.drop(others[0], local=True)
        return timed(lambda: held(client, others[0]))

    params, peer_call = f"hit of {SIZE}", partial(hit, fresh)
    ours = partial(hit, pinned[0])
    yield calls_row("pin", params, ours, peer=FRESH, peer_call=peer_call, calls=NUM_HITS, repeats=TURNS * num_rounds)
    figures = compare({"ours": lambda: wall_us(ours, NUM_HITS), NOT_PINNED: fetch}, num_rounds)
    yield row("pin", params, figures["ours"], "us", peer=NOT_PINNED, peer_value=figures[NOT_PINNED])


def _costs(hosts: Hosts, pinned: Client, free: Client, num_rounds: int) -> Iterator[Row]:
    """Fill two stores, one of them with pinned records among the others; then put, and pin."""
    num_records = STORE_BYTES // SMALL["x"].nbytes
    for number in range(2 * num_records):
        for client in (pinned, free):
            client.put(key := hosts.new_key(), SMALL)
            if client is pinned and number >= num_records and number % ONE_OF == 0:
                _pin(client, [key])

    def put(client: Client) -> object:
        return client.put(hosts.new_key(), SMALL)

    params, ours, peer_call = "put of 32 KiB into a full store", partial(put, pinned), partial(put, free)
    yield calls_row("pin", params, ours, peer=NO_PINS, peer_call=peer_call, calls=NUM_CALLS, repeats=TURNS * num_rounds)
    free.put("mine", SMALL)

    def pin_and_unpin() -> object:
        _pin(free, ["mine"])
        return free.unpin(["mine"])

    params = "pin and unpin"
    yield calls_row(
        "pin", params, pin_and_unpin, peer=PING, peer_call=free.ping, calls=NUM_CALLS, repeats=TURNS * num_rounds
    )


def _pin(client: Client, keys: list[str]) -> None:
    if not all(client.pin(keys, ttl_s=PIN_S)):
        raise RuntimeError("a record was evicted before it was pinned")
