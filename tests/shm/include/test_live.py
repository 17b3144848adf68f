"""A process in C reads a live store: nurseries, evictions, overwrites, `kill -9` of either side, forks."""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.cache.store_keys import store_key
from mmcached.client import Client
from mmcached.client.store import nursery
from mmcached.shm.ring.key_index import key_digest
from mmcached.shm.store.codec import encode
from tests.client.store.at_once import AtOnce
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually, small_config
from tests.present import present
from tests.shm.include.compiling import HERE, SANITIZERS, WARNINGS, compile_c
from tests.shm.include.native_child import (
    DAMAGED,
    DETACHED,
    MISSING,
    NO_SERVICE,
    OK,
    OTHER_VERSION,
    UNREADABLE,
    Found,
    NativeReader,
)

SMALL, LARGE = 4 << 10, 1 << 20
SOAK_KEYS = 64


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(HERE / "reader.c", tmp_path_factory.mktemp("c") / "reader", *WARNINGS, *SANITIZERS)


@pytest.fixture(autouse=True)
def populated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "Populator", AtOnce)


@pytest.fixture
def frontend(run_dir: Path, request: pytest.FixtureRequest) -> Iterator[LoneFrontend]:
    settings = {"world_size": 0, "store_gb": 1 / 32, **getattr(request, "param", {})}
    with LoneFrontend(run_dir, small_config(**settings)) as started:
        yield started


@pytest.fixture
def client(frontend: LoneFrontend) -> Iterator[Client]:
    with Client(frontend.directory.path, fail_open=False) as made:
        yield made


@pytest.fixture
def reader(frontend: LoneFrontend, program: Path) -> Iterator[NativeReader]:
    with NativeReader(program, frontend.directory.path) as made:
        assert made.attached == OK
        yield made


def record(value: int, nbytes: int) -> dict[str, Any]:
    return {"x": np.full(nbytes, value, np.uint8)}


def crc_of(value: int, nbytes: int) -> int:
    return zlib.crc32(encode(record(value, nbytes)).joined())


def put_in_nursery(client: Client, reader: NativeReader, key: str, value: int) -> Found:
    """Put a large record until it lies in a nursery, which the first puts open; return it, under a lease."""

    def put() -> Found:
        assert client.put(key, record(value, LARGE), overwrite=True)
        found = reader.found(key)
        if not found.nursery:
            reader.ask("back", found.lease)
        return found

    return eventually(put, lambda found: found.nursery > 0, "the record is laid into a nursery")


def test_a_key_has_the_digest_that_the_service_computes(reader: NativeReader) -> None:
    for key in ("k", "a" * 60, "ünïcödé/☃", "b" * 200):
        assert tuple(reader.ask("digest", key).values()) == key_digest(store_key("t", key))


def test_records_in_the_main_ring_and_in_nurseries_are_found(
    reader: NativeReader, client: Client, frontend: LoneFrontend
) -> None:
    client.put("small", record(7, SMALL))
    small, large = reader.found("small"), put_in_nursery(client, reader, "large", 8)
    assert (small.crc, small.nursery) == (crc_of(7, SMALL), 0)
    assert large.crc == crc_of(8, LARGE)
    assert reader.get("nothing") == MISSING
    assert reader.ask("may")["outcome"] == 1
    for found in (small, large):
        reader.ask("back", found.lease)
    eventually(lambda: frontend.at_rest().store.hits, lambda hits: hits >= 2, "the hits are counted")


def test_an_overwritten_record_stays_under_its_lease(reader: NativeReader, client: Client) -> None:
    client.put("k", record(1, SMALL))
    former = reader.found("k")
    client.put("k", record(2, SMALL), overwrite=True)
    for number in range(200):
        client.put(f"other {number}", record(number % 250, LARGE // 2))
    assert reader.ask("read", former.lease)["crc"] == former.crc == crc_of(1, SMALL)
    reader.ask("back", former.lease)


def test_a_record_that_another_process_holds_is_read_after_it_was_dropped(
    reader: NativeReader, client: Client, frontend: LoneFrontend
) -> None:
    client.put("k", record(1, SMALL))
    hit = present(client.get("k", view=True, tensors="numpy"))
    token = present(hit.token)
    client.delete("k")
    assert reader.get("k") == MISSING
    held = reader.hold(token)
    assert isinstance(held, Found)
    assert held.crc == crc_of(1, SMALL)
    del hit
    assert reader.ask("read", held.lease)["crc"] == held.crc
    reader.ask("back", held.lease)
    frontend.at_rest()


def test_a_record_that_has_expired_is_missing(reader: NativeReader, client: Client) -> None:
    client.put("k", record(1, SMALL), ttl_s=0.2)

    def look() -> Found | int:
        found = reader.get("k")
        if isinstance(found, Found):
            reader.ask("back", found.lease)
        return found

    eventually(look, lambda found: found == MISSING, "it expires")


@pytest.mark.parametrize("frontend", [{"ring_has_checksums": True}], indirect=True)
def test_damaged_bytes_are_not_given_out(reader: NativeReader, client: Client, frontend: LoneFrontend) -> None:
    client.put("k", record(1, SMALL))
    found = reader.found("k")
    reader.ask("back", found.lease)
    with reader.data_path().open("r+b") as file:
        file.seek(found.offset + 100)
        file.write(b"\x55")
    assert reader.get("k") == DAMAGED
    assert frontend.at_rest()


def test_a_truncated_nursery_is_not_read(reader: NativeReader, client: Client, frontend: LoneFrontend) -> None:
    found = put_in_nursery(client, reader, "large", 3)
    reader.ask("back", found.lease)
    os.truncate(reader.data_path().with_suffix(f".nursery{found.nursery}"), found.offset + 4096)
    assert reader.get("large") == UNREADABLE
    assert frontend.at_rest()


def test_a_ring_of_another_layout_is_refused(reader: NativeReader) -> None:
    with reader.data_path().with_suffix(".ctl").open("r+b") as file:
        file.seek(8)
        file.write((99).to_bytes(4, "little"))
    assert reader.ask("attach")["outcome"] == OTHER_VERSION


def test_threads_of_one_reader_lose_no_count(reader: NativeReader, client: Client) -> None:
    client.put("k", record(1, SMALL))
    assert reader.ask("threads", "k", 20_000) == {"hits": 80_000, "leases": 0}


def test_what_is_read_while_records_are_put_evicted_and_overwritten_is_whole(
    reader: NativeReader, client: Client, frontend: LoneFrontend
) -> None:
    rng = random.Random(7)
    keys = [f"s{number}" for number in range(SOAK_KEYS)]

    def put() -> None:
        nbytes = rng.choice((96 << 10, LARGE, LARGE, LARGE))
        client.put(rng.choice(keys), record(rng.randrange(256), nbytes), overwrite=rng.random() < 0.5)

    for _ in range(100):
        put()
    reader.send(f"soak 3 {SOAK_KEYS}\n".encode())
    for _ in range(400):
        put()
    found = reader.answer()
    assert found["hits"] > 0
    assert found["misses"] > 0
    assert frontend.at_rest().store.ring.leases == 0


def test_the_leases_of_a_killed_reader_end(reader: NativeReader, client: Client, frontend: LoneFrontend) -> None:
    client.put("k", record(1, SMALL))
    reader.found("k")
    eventually(lambda: frontend.stats().store.ring.leases, lambda leases: leases == 1, "the lease is seen")
    reader.kill()
    frontend.at_rest()


def test_a_reader_goes_on_while_the_frontend_is_dead_and_with_the_next(
    reader: NativeReader, frontend: LoneFrontend
) -> None:
    with Client(frontend.directory.path, fail_open=False) as client:
        client.put("k", record(1, SMALL))
        client.put("j", record(2, SMALL))
        put_in_nursery(client, reader, "large", 3)
    held = reader.found("k")
    frontend.kill()
    assert reader.ask("read", held.lease)["crc"] == held.crc
    assert reader.found("j").crc == crc_of(2, SMALL)
    assert reader.found("large").crc == crc_of(3, LARGE)
    frontend.start()
    with Client(frontend.directory.path, fail_open=False) as client:
        client.put("new", record(4, SMALL))
        assert reader.found("new").crc == crc_of(4, SMALL)
        assert reader.ask("read", held.lease)["crc"] == held.crc
        assert reader.ask("register")["outcome"] == NO_SERVICE
        assert reader.ask("attach")["outcome"] == OK
        assert reader.found("new").crc == crc_of(4, SMALL)


def test_a_ring_that_has_ended_gives_no_leases(reader: NativeReader, client: Client, frontend: LoneFrontend) -> None:
    client.put("k", record(1, SMALL))
    held = reader.found("k")
    client.close()
    frontend.process.terminate()
    frontend.process.wait(60)
    assert reader.get("k") == DETACHED
    assert reader.ask("read", held.lease)["crc"] == held.crc
    assert reader.ask("attach")["outcome"] == NO_SERVICE


def test_a_forked_child_reads_on_under_the_lease_of_its_dead_parent(
    reader: NativeReader, client: Client, frontend: LoneFrontend
) -> None:
    client.put("k", record(1, SMALL))
    held = reader.found("k")
    assert reader.ask("fork", held.lease)["pid"] > 0
    reader.kill()
    assert reader.line() == "alone"
    client.delete("k")
    for number in range(200):
        client.put(f"other {number}", record(number % 250, LARGE // 2))
    reader.send(b"r")
    assert reader.answer() == {"same": 1}
    assert frontend.stats().store.ring.leases == 1
    reader.send(b"r")
    assert reader.answer() == {"same": 1}
    reader.close_input()
    frontend.at_rest()
