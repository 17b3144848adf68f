"""A record that was dropped on one host is found by none, whatever else hosts know, save or fetch at that moment."""

from __future__ import annotations

import os

import pytest

from mmcached.second_level.backend import BackendError
from mmcached.second_level.drops import (
    ENTRY_BYTES,
    LOG_NAME,
    MAX_LOGGED,
    Dropped,
    KnownDrops,
    count_in,
    entry_of,
    mark_name,
    mark_of,
    with_entry,
)
from mmcached.second_level.namespaces import key_prefix
from mmcached.second_level.records import HEAD_BYTES, PART_BYTES, Found, Missed
from mmcached.second_level.shared_records import SharedRecords
from tests.second_level.conftest import MakeRecords, in_time
from tests.second_level.plain_server import PlainBackend, PlainServer
from tests.second_level.servers import Server

NAME, OTHER, LARGE = "ab" * 32, "cd" * 32, "ef" * 32


@pytest.fixture
def one(server: Server, make_records: MakeRecords) -> SharedRecords:
    return make_records(server.url)


@pytest.fixture
def two(server: Server, make_records: MakeRecords) -> SharedRecords:
    return make_records(server.url)


def read(records: SharedRecords, name: str = NAME) -> str:
    (found,) = records.get_many([name], deadline=in_time())
    return b"".join(found.pieces).decode() if isinstance(found, Found) else found.reason


def save(records: SharedRecords, text: str, name: str = NAME) -> str:
    """Save a record as the process does, which knows its epoch when orders come."""
    if not records.epoch:
        records.probe(deadline=in_time())
    return records.save(name, [text.encode()], as_of=records.scope_of(name), deadline=in_time())


def drop(records: SharedRecords, name: str = NAME) -> None:
    records.drop(name, deadline=in_time())


def told(records: SharedRecords) -> tuple[list[str], bool]:
    """Return what a host drops of its own store, as its probe has told it to look."""
    news: list[int] = []
    records.on_drops = lambda: news.append(1)
    records.probe(deadline=in_time())
    return records.take_drops(deadline=in_time()) if news else ([], False)


def test_a_dropped_record_is_found_by_no_host_and_leaves_no_bytes(
    server: Server, one: SharedRecords, two: SharedRecords
) -> None:
    for records, name in ((one, NAME), (two, OTHER)):
        assert save(records, "former", name) == "kept"
    large = os.urandom(1 << 20) * 33
    one.save(LARGE, [large], deadline=in_time())
    assert len(large) > PART_BYTES
    drop(one)
    drop(two, LARGE)
    assert [read(records, name) for records in (one, two) for name in (NAME, LARGE)] == ["absent"] * 4
    assert read(two, OTHER) == "former"
    with server.client() as client:
        assert sum(client.strlen(key) for key in client.scan_iter()) < 3000, "marks, a log, and the other record"
    assert told(two) == ([NAME], False), "its own drop is no news"
    assert told(one) == ([LARGE], False)
    assert told(one) == told(two) == ([], False)


def test_what_is_saved_after_a_drop_is_found_by_all(one: SharedRecords, two: SharedRecords) -> None:
    save(one, "former")
    drop(one)
    assert save(one, "later") == "kept"
    assert read(two) == "later", "a host that has not heard of the drop"
    drop(two)
    assert read(one) == "absent"
    assert save(two, "last") == "kept"
    assert [read(one), read(two)] == ["last", "last"]


def test_a_save_of_before_a_drop_is_outdated(one: SharedRecords, two: SharedRecords) -> None:
    before = two.scope_of(NAME)
    assert read(two) == "absent"
    before = before._replace(epoch=two.epoch)
    drop(one)
    assert two.save(NAME, [b"former"], as_of=before, deadline=in_time()) == "outdated"
    assert read(one) == read(two) == "absent"
    assert save(two, "later") == "kept"
    assert read(one) == "later"


def test_a_save_that_is_under_way_during_a_drop_is_found_by_no_host(server: Server, make_records: MakeRecords) -> None:
    plain = PlainServer()
    one, two = (SharedRecords(PlainBackend(plain), max_bytes=1 << 20, ttl_s=60.0) for _ in range(2))

    def drop_first(what: str) -> None:
        if what == "put":
            plain.before = lambda name: None
            drop(two)

    assert read(one) == "absent"
    plain.before = drop_first
    assert save(one, "former") == "kept"
    assert read(one) == read(two) == "absent"


def test_a_new_record_may_be_saved_before_its_drop_is_on_the_server(one: SharedRecords, two: SharedRecords) -> None:
    save(one, "former")
    one.drops.begin(NAME)
    assert read(one) == "absent"
    assert save(one, "later") == "kept"
    drop(one)
    assert [read(one), read(two)] == ["later", "later"]


def test_a_drop_that_failed_halfway_is_repeated_as_a_whole() -> None:
    plain = PlainServer()
    one, two = (SharedRecords(PlainBackend(plain), max_bytes=1 << 20, ttl_s=60.0) for _ in range(2))
    for step in ("get_heads", "put", "remove", "log_drop"):
        save(one, f"former {step}")

        def fail(what: str, step: str = step) -> None:
            if what == step:
                raise BackendError("no")

        plain.before = fail
        with pytest.raises(BackendError):
            drop(one)
        plain.before = lambda what: None
        drop(one)
        assert [read(one), read(two)] == ["absent", "absent"]
        assert told(two) == ([NAME], False)


def test_a_mark_that_the_server_has_lost_is_put_back(server: Server, one: SharedRecords, two: SharedRecords) -> None:
    drop(one)
    save(one, "later")
    with server.client() as client:
        assert client.delete(f"{key_prefix('')}record:{mark_name(NAME)}") == 1
    assert read(two) == "absent", "nobody has told it"
    assert read(one) == "later"
    assert read(two) == "later"


def test_a_host_that_drops_a_name_again_and_again_is_told_of_none(one: SharedRecords) -> None:
    for _ in range(3):
        drop(one)
    one.drops.begin(NAME)
    assert told(one) == ([], False)


def test_versions_and_epochs_do_not_matter_to_a_drop(one: SharedRecords, two: SharedRecords) -> None:
    one.flush("v1", deadline=in_time())
    two.flush("v2", deadline=in_time())
    for records in (one, two):
        save(records, "former")
    drop(one)
    assert [read(one), read(two)] == ["absent", "absent"]


def test_a_value_that_is_no_mark_counts_as_none(server: Server, one: SharedRecords) -> None:
    save(one, "record")
    with server.client() as client:
        for nonsense in (b"", b"nonsense", mark_of("x" * 16), mark_of("0" * 16) + b"x"):
            client.set(f"{key_prefix('')}record:{mark_name(NAME)}", nonsense)
            assert read(one) == "record"


def test_the_log_keeps_the_last_drops_and_counts_all(server: Server, one: SharedRecords, two: SharedRecords) -> None:
    names = [f"{number:064x}" for number in range(MAX_LOGGED + 2)]
    assert told(two) == ([], False)
    drop(one, NAME)
    assert told(two) == ([NAME], False)
    for name in names:
        one._server.log_drop(LOG_NAME, entry_of(Dropped(name, name[-16:])), ttl_s=60.0, deadline=in_time())
    assert told(two) == (names[2:], True), "two are missing"
    with server.client() as client:
        log = client.get(f"{key_prefix('')}record:{LOG_NAME}")
        assert isinstance(log, bytes)
        assert len(log) == HEAD_BYTES + MAX_LOGGED * ENTRY_BYTES
        client.flushall()
    drop(one, OTHER)
    assert told(two) == ([OTHER], False), "another log: none is missing as far as is known"


def test_the_log_of_a_server_without_scripts_is_the_same() -> None:
    log = None
    for number in range(MAX_LOGGED + 1):
        log = with_entry(log, entry_of(Dropped(f"{number:064x}", f"{number:016x}")))
    assert log is not None
    assert len(log) == HEAD_BYTES + MAX_LOGGED * ENTRY_BYTES
    known = KnownDrops()
    names, are_all = known.read_log(log)
    assert (len(names), names[0], are_all) == (MAX_LOGGED, f"{1:064x}", False)
    assert known.id_of(names[0]) == f"{1:016x}"
    assert not known.is_news(log)
    more = with_entry(log, entry_of(Dropped(NAME, "a" * 16)))
    assert known.is_news(more)
    assert count_in(more) == count_in(log) + 1
    assert known.read_log(more) == ([NAME], False)
    known.read_again()
    assert known.read_log(more)[0][-1] == NAME


@pytest.mark.parametrize("log", [None, b"", b"nonsense", b"9" * 19, b" " * 2000, b"0" * 19 + b"x" * 1000])
def test_a_log_that_is_none_says_nothing(log: bytes | None) -> None:
    assert KnownDrops().read_log(log) == ([], False)


def test_marks_that_are_late_make_their_records_late() -> None:
    plain = PlainServer()
    records = SharedRecords(PlainBackend(plain), max_bytes=1 << 20, ttl_s=60.0)
    save(records, "record")

    class Late(PlainBackend):
        def get_many(self, names, *, deadline):  # type: ignore[no-untyped-def]
            epoch, values = super().get_many(names, deadline=deadline)
            return epoch, [
                BackendError("late") if name.startswith("drop ") else value
                for name, value in zip(names, values, strict=True)
            ]

    late = SharedRecords(Late(plain), max_bytes=1 << 20, ttl_s=60.0)
    assert late.get_many([NAME], deadline=in_time()) == [Missed("failed")]
