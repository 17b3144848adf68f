"""Records that one host saves and another finds, in a real server."""

from __future__ import annotations

import os

import pytest

from mmcached.second_level.records import PART_BYTES
from mmcached.second_level.shared_records import Found, Missed, SharedRecords
from mmcached.wire.errors import ItemTooLarge
from tests.second_level.conftest import MAX_BYTES, MakeRecords, in_time
from tests.second_level.servers import Server

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


def save(records: SharedRecords, name: str, record: bytes, *, as_of: int = 0) -> str:
    half = len(record) // 2
    return records.save(name, [record[:half], record[half:]], as_of=as_of, deadline=in_time())


def test_what_one_saves_another_finds(one: SharedRecords, two: SharedRecords) -> None:
    assert read(two, NAME) == ["absent"]
    assert save(one, NAME, RECORD) == "kept"
    assert save(one, OTHER, b"") == "kept"
    assert read(two, OTHER, LARGE, NAME) == [b"", "absent", RECORD]
    assert two.holds([LARGE, NAME], deadline=in_time()) == [False, True]


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


def test_a_new_epoch_has_no_records(one: SharedRecords, two: SharedRecords) -> None:
    save(one, NAME, RECORD)
    assert read(two, NAME) == [RECORD]
    before = two.epoch
    one.begin_epoch(deadline=in_time())
    assert read(two, NAME) == ["epoch"]
    assert two.epoch == one.epoch != before
    assert save(two, NAME, RECORD, as_of=before) == "outdated"
    assert save(two, NAME, RECORD, as_of=one.epoch) == "kept"
    assert read(one, NAME) == [RECORD]


def test_a_server_that_lost_its_epoch_begins_another(server: Server, one: SharedRecords, two: SharedRecords) -> None:
    save(one, NAME, RECORD)
    with server.client() as client:
        client.delete("mmcached:epoch")
    assert read(two, NAME) == ["epoch"]
    assert save(two, OTHER, RECORD) == "kept"
    assert read(one, NAME, OTHER) == ["epoch", RECORD]


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
        client.setrange(f"mmcached:record:{NAME}", 50_000, b"damaged")
    assert read(two, NAME) == ["corrupt"]
    assert save(two, NAME, RECORD) == "kept"
    assert read(one, NAME) == [RECORD]


def test_a_part_that_was_evicted_is_a_miss(server: Server, one: SharedRecords, two: SharedRecords) -> None:
    record = bytes(PART_BYTES + 1)
    save(one, LARGE, record)
    with server.client() as client:
        (part,) = client.keys(f"mmcached:record:{LARGE}/*/1")
        client.delete(part)
    assert read(two, LARGE) == ["cut"]
    assert save(two, LARGE, record) == "kept"
    assert read(one, LARGE) == [record]
