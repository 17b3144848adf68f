"""Records that one host saves and another finds, in a real server."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from mmcached.second_level.backend import BackendError, HostApart
from mmcached.second_level.epoch_note import EpochNote
from mmcached.second_level.records import PART_BYTES, Found, Missed
from mmcached.second_level.redis.backend import RedisBackend
from mmcached.second_level.redis.place import read_place
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from mmcached.second_level.versions import Scope
from mmcached.wire.errors import ItemTooLarge
from tests.second_level.conftest import MAX_BYTES, OUTER_S, MakeRecords, in_time
from tests.second_level.servers import EPOCH, Server

NAME, OTHER, LARGE = "ab" * 32, "cd" * 32, "ef" * 32
RECORD = os.urandom(100_000)


@pytest.fixture
def one(server: Server, make_records: MakeRecords) -> SharedRecords:
    return make_records(server.url)


@pytest.fixture
def two(server: Server, make_records: MakeRecords) -> SharedRecords:
    return make_records(server.url)


def bytes_of(found: Found | Missed) -> bytes | str:
    return b"".join(found.pieces) if isinstance(found, Found) else found.reason


def read(records: SharedRecords, *names: str) -> list[bytes | str]:
    return [bytes_of(found) for found in records.get_many(names, deadline=in_time())]


def save(records: SharedRecords, name: str, record: bytes, *, as_of: Scope | None = None) -> str:
    half = len(record) // 2
    return records.save(name, [record[:half], record[half:]], as_of=as_of, deadline=in_time())


def test_what_one_saves_another_finds(one: SharedRecords, two: SharedRecords) -> None:
    assert read(two, NAME) == ["absent"]
    assert save(one, NAME, RECORD) == "kept"
    assert save(one, OTHER, b"") == "kept"
    assert read(two, OTHER, LARGE, NAME) == [b"", "absent", RECORD]


def test_a_large_record_is_kept_in_parts(one: SharedRecords, two: SharedRecords) -> None:
    record = os.urandom(1 << 20) * 33 + b"end"
    assert len(record) > PART_BYTES
    assert save(one, LARGE, record) == "kept"
    assert read(two, LARGE, NAME) == [record, "absent"]
    assert save(two, LARGE, record) == "there"


def test_what_lies_there_is_not_sent_again(one: SharedRecords, two: SharedRecords) -> None:
    assert [save(one, NAME, RECORD), save(two, NAME, RECORD)] == ["kept", "there"]
    assert save(two, NAME, RECORD[::-1]) == "kept"
    assert read(one, NAME) == [RECORD[::-1]]


@pytest.mark.parametrize("nbytes", [1000, PART_BYTES + 1], ids=["whole", "in parts"])
def test_a_record_expires_where_it_is_found(server: Server, one: SharedRecords, nbytes: int) -> None:
    record = bytes(nbytes)
    now = time.time()
    with SharedRecords(make_backend(server.url), max_bytes=MAX_BYTES, ttl_s=60.0, wall_clock=lambda: now) as other:
        assert one.save(NAME, [record], ttl_s=20.0, deadline=in_time()) == "kept"
        (found,) = other.get_many([NAME], deadline=in_time())
        assert isinstance(found, Found)
        assert 20.0 - 0.001 <= found.ttl_s <= 20.0 + OUTER_S, "times travel in whole milliseconds"
        with server.client() as client:
            lives = [client.pttl(key) for key in client.keys("mmcached:3:record:*")]
            assert all(0 < life <= 20_000 for life in lives), lives
        now += 20.0 + OUTER_S
        assert read(other, NAME) == ["absent"]
        assert save(one, NAME, record) == "kept"
        assert read(other, NAME) == [record]
        (found,) = other.get_many([NAME], deadline=in_time())
        assert isinstance(found, Found)
        assert found.ttl_s == 0.0


@pytest.mark.parametrize("nbytes", [1000, PART_BYTES + 1], ids=["whole", "in parts"])
def test_a_record_keeps_the_cost_of_its_first_host(one: SharedRecords, two: SharedRecords, nbytes: int) -> None:
    record = bytes(nbytes)
    saves = [each.save(NAME, [record], cost_s=cost_s, deadline=in_time()) for each, cost_s in ((one, 1.25), (two, 9.0))]
    assert saves == ["kept", "there"]
    (found,) = two.get_many([NAME], deadline=in_time())
    assert isinstance(found, Found)
    assert found.cost_s == pytest.approx(1.25)


def test_a_new_epoch_has_no_records(one: SharedRecords, two: SharedRecords) -> None:
    save(one, NAME, RECORD)
    assert read(two, NAME) == [RECORD]
    before = two.scope
    one.flush(deadline=in_time())
    assert read(one, NAME) == ["epoch"]
    two.flush(deadline=in_time())
    assert two.scope == one.scope > before
    assert save(two, NAME, RECORD, as_of=before) == "outdated"
    assert save(two, NAME, RECORD, as_of=one.scope) == "kept"
    assert read(one, NAME) == [RECORD]
    two.flush(deadline=in_time())
    assert two.epoch > one.epoch, "a host that is up to date begins the next one"


def test_a_host_is_apart_from_the_flush_of_another_one_until_its_own(one: SharedRecords, two: SharedRecords) -> None:
    assert read(two, NAME) == ["absent"]
    one.flush(deadline=in_time())
    save(one, NAME, RECORD)
    told: list[str] = []
    two.on_apart = lambda: told.append("apart")
    for call in (
        lambda: two.probe(deadline=in_time()),
        lambda: read(two, NAME),
        lambda: save(two, OTHER, RECORD),
        lambda: two.claim(OTHER, ttl_s=60.0, deadline=in_time()),
    ):
        with suppress(HostApart):
            call()
        assert two.is_apart
    assert told == ["apart"]
    assert read(one, OTHER) == ["absent"], "it has saved nothing"
    two.flush(deadline=in_time())
    assert not two.is_apart
    assert read(two, NAME) == [RECORD]


def test_hosts_that_are_flushed_at_once_share_an_epoch(server: Server, make_records: MakeRecords) -> None:
    hosts = [make_records(server.url) for _ in range(8)]
    for host in hosts:
        host.probe(deadline=in_time())
    start = threading.Barrier(len(hosts))

    def flush(host: SharedRecords) -> None:
        start.wait(OUTER_S)
        host.flush(deadline=in_time())

    with ThreadPoolExecutor(len(hosts)) as pool:
        list(pool.map(flush, hosts))
    for host in hosts:
        host.probe(deadline=in_time())
    assert [host.is_apart for host in hosts] == [False] * len(hosts)


@pytest.mark.parametrize("restored", ["nothing", "the former epoch"])
def test_a_server_that_has_lost_an_epoch_gets_it_back(
    server: Server, one: SharedRecords, two: SharedRecords, restored: str
) -> None:
    save(one, NAME, RECORD)
    assert read(two, NAME) == [RECORD]
    with server.client() as client:
        former = client.get(EPOCH)
        assert isinstance(former, bytes)
        one.flush(deadline=in_time())
        two.flush(deadline=in_time())
        client.set(EPOCH, former) if restored != "nothing" else client.delete(EPOCH)
    assert read(two, NAME) == ["epoch"], "the record of before the flush lies there"
    assert not one.is_apart
    assert save(two, OTHER, RECORD) == "kept"
    assert read(one, NAME, OTHER) == ["epoch", RECORD]


def test_a_host_remembers_its_epoch(server: Server, make_records: MakeRecords, tmp_path: Path) -> None:
    other, note = make_records(server.url), EpochNote(tmp_path / "note")

    def started() -> SharedRecords:
        return SharedRecords(make_backend(server.url), max_bytes=MAX_BYTES, ttl_s=60.0, note=note)

    with started() as former:
        former.probe(deadline=in_time())
    other.probe(deadline=in_time())
    other.flush(deadline=in_time())
    with started() as following:
        with pytest.raises(HostApart):
            save(following, NAME, RECORD)
        following.flush(deadline=in_time())
    with started() as last:
        assert save(last, NAME, RECORD) == "kept"
    (tmp_path / "note").unlink()
    (tmp_path / "note").mkdir()
    with started() as blind, pytest.raises(BackendError, match="cannot be written"):
        blind.flush(deadline=in_time())


def test_hosts_of_two_versions_do_not_overwrite_each_other(server: Server, one: SharedRecords) -> None:
    with server.client() as client:
        client.set("mmcached:epoch", b"123")
        client.set(f"mmcached:record:{NAME}", b"of version 1")
        save(one, NAME, RECORD)
        assert client.get(f"mmcached:record:{NAME}") == b"of version 1"
    assert read(one, NAME) == [RECORD]
    with RedisBackend(read_place(server.url)) as backend:
        assert backend.other_versions(deadline=in_time()) == {1: "mmcached:epoch"}


def test_a_record_above_the_limit_is_not_saved(one: SharedRecords) -> None:
    half = memoryview(bytes(MAX_BYTES // 2 + 1))
    with pytest.raises(ItemTooLarge):
        one.save(NAME, [half, half], deadline=in_time())


def test_one_host_computes(one: SharedRecords, two: SharedRecords) -> None:
    assert one.claim(NAME, ttl_s=60.0, deadline=in_time())
    assert one.claim(NAME, ttl_s=60.0, deadline=in_time())  # the same host again
    assert not two.claim(NAME, ttl_s=60.0, deadline=in_time())
    two.drop_claim(NAME, deadline=in_time())  # not its own
    assert not two.claim(NAME, ttl_s=60.0, deadline=in_time())
    one.drop_claim(NAME, deadline=in_time())
    assert two.claim(NAME, ttl_s=0.001, deadline=in_time())
    while not one.claim(NAME, ttl_s=60.0, deadline=in_time()):
        pass


def test_a_damaged_record_is_replaced(server: Server, one: SharedRecords, two: SharedRecords) -> None:
    save(one, NAME, RECORD)
    with server.client() as client:
        client.setrange(f"mmcached:3:record:{NAME}", 50_000, b"damaged")
    assert read(two, NAME) == ["corrupt"]
    assert save(two, NAME, RECORD) == "kept"
    assert read(one, NAME) == [RECORD]


def test_a_part_that_was_evicted_is_a_miss(server: Server, one: SharedRecords, two: SharedRecords) -> None:
    record = bytes(PART_BYTES + 1)
    save(one, LARGE, record)
    with server.client() as client:
        (part,) = client.keys(f"mmcached:3:record:{LARGE}/*/1")
        client.delete(part)
    assert read(two, LARGE) == ["cut"]
    assert save(two, LARGE, record) == "kept"
    assert read(one, LARGE) == [record]
