"""Measures what a fleet does beyond lookups: records ahead of need, new hosts, pins, drops, quotas and namespaces.

ahead       a hit of a record that was prefetched, beside a hit of a record that this host has put; eight, beside gets
warm        a new host with `--store-warm-up`: until it has the records of its fleet, first requests, its start, and
            puts meanwhile; beside one without
drop        a record on both hosts, beside DEL of redis-py; and the longest time until the other has dropped its copy
quota       a quiet tenant's records on a server that a noisy one fills, with and without quota; and the price of a put
namespace   a record got with a namespace, beside without; and how many records of another fleet are found
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import count

import numpy as np

from mmcached.cache.store_keys import store_key
from mmcached.cli.bench.redis import redis_server
from mmcached.client import Client
from mmcached.second_level.name_lists import NUM_PLACES, names_in, place_name
from mmcached.second_level.namespaces import key_prefix
from mmcached.second_level.records import Found
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from scripts.bench.harness import Bound, Row, compare, row
from scripts.bench.peers import connect_redis
from scripts.bench.second_level_services import (
    DEADLINE_S,
    REDIS_PY,
    SIZE,
    Hosts,
    drop_here,
    fetch_ahead,
    held,
    timed,
    wait_until,
)

PUT_HERE, NOT_AHEAD, COLD = "a record of this host", "without prefetch", "without warm-up"
NO_QUOTA, NO_NAMESPACE = "without a quota", "without a namespace"
NUM_AHEAD = 8
NUM_WARM = 24
"""Records of the new host's fleet: a little less than the quarter of the store that a warm-up fills."""
NUM_OWN = 6
PROMISED_MS = 3000
NUM_QUIET, NUM_NOISY, QUOTA_MB, SERVER_MB = 12, 96, 16, 48
"""Records of 1 MiB: those of the noisy tenant are six times its quota, and twice what the server keeps."""

BOUNDS = [
    Bound("reach", "ahead", f"hit of {SIZE}", PUT_HERE, 1.1),
    Bound("reach", "ahead", f"{NUM_AHEAD} records of a turn", NOT_AHEAD, 0.1),
    Bound("reach", "warm", "first request of a record", PUT_HERE, 1.1),
    Bound("reach", "warm", "start", COLD, 1.05),
    Bound("try", "drop", "until it is confirmed", REDIS_PY, 20.0),
    Bound("reach", "drop", "longest until no copy is left", "what is promised", 1.0),
    Bound("reach", "quota", "a quiet tenant's records", "saved", 1.0, is_floor=True),
    Bound("reach", "quota", f"put of {SIZE}", NO_QUOTA, 1.05),
    Bound("reach", "namespace", f"get of {SIZE}", NO_NAMESPACE, 1.1),
    Bound("reach", "namespace", "found of another fleet", "asked for", 0.0),
]


def ahead(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Have the second host prefetch records of the first, and then hit them."""
    a, b = hosts.clients["a"], hosts.clients["b"]
    keys = [hosts.new_key() for _ in range(NUM_AHEAD)]
    for key in keys:
        a.put(key, hosts.record)
        hosts.wait_for(key)

    def hit(client: Client, key: str) -> float:
        return timed(lambda: client.get(key, view=True, tensors="numpy"))

    def turn(*, is_ahead: bool) -> float:
        drop_here(b, keys)
        if is_ahead:
            fetch_ahead(b, keys)
        return timed(lambda: [held(b, key) for key in keys])

    figures = compare({"ours": partial(turn, is_ahead=True), NOT_AHEAD: partial(turn, is_ahead=False)}, num_rounds)
    params = f"{NUM_AHEAD} records of a turn"
    yield row("ahead", params, figures["ours"], "us", peer=NOT_AHEAD, peer_value=figures[NOT_AHEAD])
    drop_here(b, keys)
    fetch_ahead(b, keys)
    figures = compare({"ours": partial(hit, b, keys[0]), PUT_HERE: partial(hit, b, "item")}, num_rounds)
    yield row("ahead", f"hit of {SIZE}", figures["ours"], "us", peer=PUT_HERE, peer_value=figures[PUT_HERE])


# ---- new hosts


def warm(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Start new hosts of a fleet in turn, with a warm-up and without, and request the records of the fleet."""
    url = hosts.url("warm")
    numbers = count()
    taken: dict[tuple[str, bool], list[float]] = defaultdict(list)
    with contextlib.ExitStack() as undo:
        former = hosts.start(undo, "former", store_l2=url, store_warm_up=True)
        keys = [hosts.new_key() for _ in range(NUM_WARM)]
        for key in keys:
            former.put(key, hosts.record)
            hosts.wait_for(key, namespace="warm")
        names = {store_key("", key) for key in keys}

        def is_told() -> bool:
            for key in keys:
                held(former, key)
            return names <= told(url)

        wait_until(is_told, "the list of the former host")
        for number in range(max(3, num_rounds // 3) + 1):
            for is_warm in (True, False) if number % 2 else (False, True):
                for what, value in _new_host(hosts, f"new {next(numbers)}", url, keys, is_warm=is_warm).items():
                    if number:
                        taken[what, is_warm].append(value)
    figures = {key: statistics.median(values) for key, values in taken.items()}
    params = f"{NUM_WARM} records of the fleet, from the start on"
    yield row("warm", params, figures["all", True], "ms", peer="requested in turn", peer_value=figures["all", False])
    params, first = "first request of a record", figures["first", True]
    yield row("warm", params, first, "us", peer=PUT_HERE, peer_value=figures["own", True])
    yield row("warm", params, first, "us", peer=COLD, peer_value=figures["first", False])
    yield row("warm", "start", figures["start", True], "ms", peer=COLD, peer_value=figures["start", False])
    params = "put while records come"
    yield row("warm", params, figures["put", True], "us", peer=COLD, peer_value=figures["put", False])


def _new_host(hosts: Hosts, name: str, url: str, keys: list[str], *, is_warm: bool) -> dict[str, float]:
    """Start a host, and request each record of the fleet once; return medians in us, and ms of the start and of all."""
    with contextlib.ExitStack() as undo:
        began = time.perf_counter()
        client = hosts.start(undo, name, store_l2=url, store_warm_up=is_warm)
        ready = time.perf_counter()
        own = [hosts.new_key() for _ in range(NUM_OWN)]
        puts = [timed(partial(client.put, key, hosts.record)) for key in own]
        if is_warm:
            wait_until(lambda: client.stats().store.fetches.warmed >= NUM_WARM, "the warm-up")
        ended = time.perf_counter()
        firsts = [timed(partial(held, client, key)) for key in keys]
        return {
            "start": 1000 * (ready - began),
            "all": 1000 * (ended - ready) if is_warm else sum(firsts) / 1000,
            "first": statistics.median(firsts),
            "own": statistics.median(timed(partial(held, client, key)) for key in own),
            "put": statistics.median(puts),
        }


def told(url: str) -> set[str]:
    """Return the names on all lists that the hosts of a fleet have saved."""
    with SharedRecords(make_backend(url), max_bytes=1 << 20, ttl_s=60.0) as records:
        places = [place_name(number) for number in range(NUM_PLACES)]
        found = records.get_many(places, deadline=time.monotonic() + 5.0)
    return {name for each in found if isinstance(each, Found) for name in names_in(b"".join(each.pieces))}


def drops(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Have the first host drop records of which the second has copies."""
    a, b = hosts.clients["a"], hosts.clients["b"]
    ended_ms: list[float] = []

    def here() -> float:
        key = hosts.new_key()
        a.put(key, hosts.record)
        hosts.wait_for(key)
        held(b, key)
        taken = timed(lambda: a.drop(key))
        began = time.perf_counter()
        while b.exists(key):
            time.sleep(0.001)
        ended_ms.append(1000 * (time.perf_counter() - began))
        return taken

    with contextlib.closing(connect_redis(hosts.path)) as python:

        def there() -> float:
            python.set("plain", hosts.record["x"].tobytes())
            return timed(lambda: python.delete("plain"))

        figures = compare({"ours": here, REDIS_PY: there}, num_rounds)
    yield row("drop", "until it is confirmed", figures["ours"], "us", peer=REDIS_PY, peer_value=figures[REDIS_PY])
    params = "longest until no copy is left"
    yield row("drop", params, max(ended_ms), "ms", peer="what is promised", peer_value=PROMISED_MS)


# ---- fleets and tenants on one server


def quotas(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Have a tenant save more than a small server keeps, and count what it leaves of another tenant's records."""
    for words, quota_gb in {"": QUOTA_MB / 1024, f", {NO_QUOTA}": 0.0}.items():
        params, num_left = f"a quiet tenant's records{words}", _quiet_left(hosts, quota_gb)
        yield row("quota", params, num_left, "records", peer="saved", peer_value=NUM_QUIET)

    def put(client: Client) -> float:
        key = hosts.new_key()
        taken = timed(lambda: client.put(key, hosts.record))
        hosts.wait_for(key)
        return taken

    with contextlib.ExitStack() as undo:
        quotas_gb = {"ours": 1024.0, NO_QUOTA: 0.0}
        clients = {name: hosts.start(undo, name, store_l2_tenant_quota_gb=gb) for name, gb in quotas_gb.items()}
        for client in clients.values():
            for _ in range(NUM_AHEAD):  # the first ones find memory that no process has touched
                put(client)
        figures = compare({name: partial(put, client) for name, client in clients.items()}, 3 * num_rounds)
    yield row("quota", f"put of {SIZE}", figures["ours"], "us", peer=NO_QUOTA, peer_value=figures[NO_QUOTA])


def _quiet_left(hosts: Hosts, quota_gb: float) -> int:
    """Return how many records of a quiet tenant are still in a server of their own after a noisy tenant's puts."""
    path = str(hosts.folder / "small-redis")
    with contextlib.ExitStack() as undo:
        undo.enter_context(redis_server(path))
        server = undo.enter_context(contextlib.closing(connect_redis(path)))
        server.config_set("maxmemory-policy", "allkeys-lru")
        server.config_set("maxmemory", SERVER_MB << 20)
        settings = {"store_l2": f"unix://{path}", "store_l2_tenant_quota_gb": quota_gb}
        client = hosts.start(undo, f"quota {quota_gb}", log_level="error", **settings)  # its epoch is evicted, too
        wait_until(lambda: client.stats().second_level is not None, "the second level")

        def put(tenant: str, num_records: int) -> list[str]:
            keys = [hosts.new_key() for _ in range(num_records)]
            for key in keys:
                client.put(key, {"x": np.zeros(1 << 20, np.uint8)}, tenant=tenant)
            return [f"{key_prefix('')}record:{store_key(tenant, key)}" for key in keys]

        def num_ended() -> int:
            level = client.stats().second_level
            return 0 if level is None else level.puts_kept + level.puts_over_quota + level.puts_dropped

        names = put("quiet", NUM_QUIET)
        wait_until(lambda: num_ended() == NUM_QUIET, "the quiet tenant's saves")
        put("noisy", NUM_NOISY)
        wait_until(lambda: num_ended() == NUM_QUIET + NUM_NOISY, "the noisy tenant's saves")
        return int(server.exists(*names))


def namespaces(hosts: Hosts, num_rounds: int) -> Iterator[Row]:
    """Get a record of another host, with and without a namespace; and ask for records of another fleet."""
    with contextlib.ExitStack() as undo:
        blue = [hosts.start(undo, name, store_l2=hosts.url("blue")) for name in ("blue a", "blue b")]
        white = [hosts.clients[name] for name in ("a", "b")]
        key, of_white = hosts.new_key(), [hosts.new_key() for _ in range(NUM_AHEAD)]
        blue[0].put(key, hosts.record)
        hosts.wait_for(key, namespace="blue")
        for each in (key, *of_white):
            white[0].put(each, hosts.record)
            hosts.wait_for(each)

        def of_other_host(client: Client) -> float:
            client.drop(key, local=True)
            return timed(lambda: held(client, key))

        samplers = {"ours": partial(of_other_host, blue[1]), NO_NAMESPACE: partial(of_other_host, white[1])}
        figures = compare(samplers, 3 * num_rounds)
        num_found = sum(blue[1].get(each, timeout_s=DEADLINE_S) is not None for each in of_white)
    params = f"get of {SIZE}"
    yield row("namespace", params, figures["ours"], "us", peer=NO_NAMESPACE, peer_value=figures[NO_NAMESPACE])
    yield row("namespace", "found of another fleet", num_found, "records", peer="asked for", peer_value=NUM_AHEAD)
