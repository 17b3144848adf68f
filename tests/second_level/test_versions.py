"""Versions that operators give: no order of flushes and restarts serves a record of another version."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mmcached.second_level.backend import HostApart
from mmcached.second_level.epoch_note import EpochNote
from mmcached.second_level.records import Found
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from mmcached.second_level.versions import VERSION_NAME, Scope
from tests.second_level.conftest import MAX_BYTES, MakeRecords, in_time
from tests.second_level.plain_server import PlainBackend, PlainServer
from tests.second_level.servers import Server

NAME, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def one(server: Server, make_records: MakeRecords) -> SharedRecords:
    return make_records(server.url)


@pytest.fixture
def two(server: Server, make_records: MakeRecords) -> SharedRecords:
    return make_records(server.url)


def read(records: SharedRecords, name: str) -> str:
    (found,) = records.get_many([name], deadline=in_time())
    return b"".join(found.pieces).decode() if isinstance(found, Found) else found.reason


def save(records: SharedRecords, name: str, text: str, as_of: Scope | None = None) -> str:
    return records.save(name, [text.encode()], as_of=as_of, deadline=in_time())


class Host:
    """A host whose records are the text of the weights that it has; new weights are flushed at once."""

    def __init__(self, server: PlainServer, note: Path) -> None:
        self._server = server
        self._note = note
        self.weights = ""
        self.start()

    def start(self) -> None:
        """Start the process of the second level, as after a restart of the host with the weights that it had."""
        note = EpochNote(self._note)
        self.records = SharedRecords(PlainBackend(self._server), max_bytes=MAX_BYTES, ttl_s=60.0, note=note)
        self.records.probe(deadline=in_time())

    def do(self, step: str) -> None:
        match step.split():
            case ["flush", version]:
                self.weights = version
                self.records.flush(version, deadline=in_time())
            case ["save"]:
                save(self.records, NAME, self.weights)
            case ["restart"]:
                self.start()

    def found(self) -> str | None:
        """Return the weights of the record that this host finds; None if it finds none."""
        text = read(self.records, NAME)
        return None if text in ("absent", "epoch") else text


def interleaved(one: Sequence[str], two: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Yield all orders in which two hosts can do their steps."""
    num = len(one) + len(two)
    for places in itertools.combinations(range(num), len(one)):
        steps = iter(one), iter(two)
        yield [(host, next(steps[host])) for host in (0 if place in places else 1 for place in range(num))]


ROUNDS = ["flush v1", "save", "flush v2", "save"]


@pytest.mark.parametrize(
    "other",
    [
        ["flush v1", "save", "restart", "flush v2", "save"],
        ["flush v1", "save", "flush v2", "restart", "save", "restart"],
        ["flush v1", "flush v2", "save", "flush v1", "save", "flush v2"],
    ],
)
def test_in_every_order_of_flushes_and_restarts_a_host_finds_what_its_own_weights_compute(
    tmp_path: Path, other: list[str]
) -> None:
    num_shared = 0
    for number, order in enumerate(interleaved(ROUNDS, other)):
        server = PlainServer()
        hosts = [Host(server, tmp_path / f"{number}.{index}") for index in range(2)]
        for index, step in order:
            hosts[index].do(step)
            for host in hosts:
                assert host.found() in (None, host.weights), f"{order}, at {index} {step}"
        assert [host.weights for host in hosts] == ["v2", "v2"]
        found = [host.found() for host in hosts]
        assert found[0] == found[1] == "v2", "whoever was flushed first, what one has saved the other finds"
        assert not any(host.records.is_apart for host in hosts)
        num_shared += 1
    assert num_shared > 100


def test_a_version_is_compared_and_not_drawn(one: SharedRecords, two: SharedRecords) -> None:
    one.flush("v2", deadline=in_time())
    assert save(one, NAME, "2") == "kept"
    assert read(two, NAME) == "absent", "it has no version"
    two.flush("v1", deadline=in_time())
    assert save(two, NAME, "1") == "kept", "it does not overwrite the other one"
    assert [read(one, NAME), read(two, NAME)] == ["2", "1"]
    two.flush("v2", deadline=in_time())
    assert read(two, NAME) == "2"
    two.flush("v2", deadline=in_time())
    assert read(two, NAME) == "2", "once more changes nothing"
    assert [read(one, name) for name in (NAME, OTHER)] == ["2", "absent"]


def test_a_save_that_was_ordered_before_a_flush_is_outdated(one: SharedRecords) -> None:
    one.flush("v1", deadline=in_time())
    before = one.scope
    one.flush("v2", deadline=in_time())
    assert save(one, NAME, "1", before) == "outdated"
    assert read(one, NAME) == "absent"


def test_claims_of_two_versions_do_not_meet(one: SharedRecords, two: SharedRecords) -> None:
    one.flush("v1", deadline=in_time())
    two.flush("v2", deadline=in_time())
    assert one.claim(NAME, ttl_s=60.0, deadline=in_time())
    assert two.claim(NAME, ttl_s=60.0, deadline=in_time())
    two.flush("v1", deadline=in_time())
    assert not two.claim(NAME, ttl_s=60.0, deadline=in_time())


def test_a_flush_without_a_version_still_ends_everything(one: SharedRecords, two: SharedRecords) -> None:
    for host in (one, two):
        host.flush("v2", deadline=in_time())
    save(one, NAME, "2")
    one.flush(deadline=in_time())
    assert read(one, NAME) == "absent" or read(one, NAME) == "epoch"
    with pytest.raises(HostApart):
        read(two, NAME)
    two.flush("v2", deadline=in_time())
    assert read(two, NAME) == "epoch", "the version's records of before are gone, too"
    save(two, NAME, "2")
    assert read(one, NAME) == "2", "it has kept its version"


def test_a_host_that_comes_back_with_an_older_version_says_so(
    server: Server, one: SharedRecords, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def started() -> SharedRecords:
        backend = make_backend(server.url)
        return SharedRecords(backend, max_bytes=MAX_BYTES, ttl_s=60.0, note=EpochNote(tmp_path / "note"))

    with started() as former:
        former.flush("v1", deadline=in_time())
        save(former, NAME, "1")
    one.flush("v2", deadline=in_time())
    save(one, NAME, "2")
    with started() as back, caplog.at_level(logging.WARNING):
        assert read(back, NAME) == "1"
        for _ in range(2):
            back.probe(deadline=in_time())
        assert back.has_other_version
        assert [each.message for each in caplog.records] == [
            "this host has version v1, the host that was flushed last has v2: they share nothing; "
            "mmcached flush --version here"
        ]
        back.flush("v2", deadline=in_time())
        assert not back.has_other_version
        assert read(back, NAME) == "2"
    one.probe(deadline=in_time())
    assert not one.has_other_version


def test_a_server_that_comes_back_with_an_older_version_is_noticed(server: Server, one: SharedRecords) -> None:
    one.flush("v1", deadline=in_time())
    save(one, NAME, "1")
    with server.client() as client:
        former = {key: client.get(key) for key in client.scan_iter()}
        one.flush("v2", deadline=in_time())
        save(one, OTHER, "2")
        client.flushall()
        for key, value in former.items():
            client.set(key, value)
        one.probe(deadline=in_time())
        assert one.has_other_version
        assert read(one, NAME) == "absent", "nothing of the older version is served"
        one.flush("v2", deadline=in_time())
        assert not one.has_other_version
        client.flushall()
    one.probe(deadline=in_time())
    one.probe(deadline=in_time())
    assert one.fleet_version == "v2", "an empty server is told again"


def test_a_false_version_in_the_server_is_none(server: Server, one: SharedRecords) -> None:
    one.probe(deadline=in_time())
    with server.client() as client:
        (epoch,) = client.scan_iter()
        name = epoch.decode().replace("epoch", f"record:{VERSION_NAME}")
        for value in (b"", b"v2", b"mmcached version ../../x", b"mmcached version " + b"v" * 65, b"\xff" * 40):
            client.set(name, value)
            one.probe(deadline=in_time())
            assert one.fleet_version is None
            assert not one.has_other_version


def test_a_false_note_has_no_version(tmp_path: Path) -> None:
    note = EpochNote(tmp_path / "note")
    note.write(Scope(7, "v2"))
    assert note.read() == Scope(7, "v2")
    for text, scope in (("7\n", Scope(7)), ("7\n../x\n", Scope(7)), ("\nv2\n", Scope()), ("x\nv2", Scope())):
        (tmp_path / "note").write_text(text)
        assert note.read() == scope
