"""Two fleets with one server: neither finds, claims, flushes or names anything of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmcached.second_level.backend import HostApart
from mmcached.second_level.namespaces import key_prefix, note_of
from mmcached.second_level.records import Found, Missed
from mmcached.second_level.redis.backend import RedisBackend
from mmcached.second_level.redis.place import read_place
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import epoch_note
from mmcached.second_level.versions import Scope
from tests.second_level.conftest import MakeRecords, in_time
from tests.second_level.servers import Server

NAME = "ab" * 32
FLEETS = ("", "blue", "green")
Fleets = dict[str, SharedRecords]


@pytest.fixture
def fleets(server: Server, make_records: MakeRecords) -> Fleets:
    """Return one host of each fleet."""
    return {name: make_records(url_of(server, name)) for name in FLEETS}


def url_of(server: Server, namespace: str) -> str:
    return server.url + (f"?namespace={namespace}" if namespace else "")


def found_by(records: SharedRecords) -> Found | Missed:
    (found,) = records.get_many([NAME], deadline=in_time())
    return found


def test_a_record_is_found_by_its_own_fleet_alone(server: Server, fleets: Fleets, make_records: MakeRecords) -> None:
    for name, records in fleets.items():
        assert found_by(records) == Missed("absent")
        assert records.save(NAME, [name.encode() or b"none"], deadline=in_time()) == "kept"
    for name in FLEETS:
        found = found_by(make_records(url_of(server, name)))
        assert isinstance(found, Found)
        assert b"".join(found.pieces) == (name.encode() or b"none")


def test_a_claim_is_of_its_own_fleet_alone(server: Server, fleets: Fleets, make_records: MakeRecords) -> None:
    assert all(records.claim(NAME, ttl_s=60.0, deadline=in_time()) for records in fleets.values())
    for name in FLEETS:
        assert not make_records(url_of(server, name)).claim(NAME, ttl_s=60.0, deadline=in_time())


def test_a_flush_concerns_its_own_fleet_alone(server: Server, fleets: Fleets, make_records: MakeRecords) -> None:
    others = {name: make_records(url_of(server, name)) for name in FLEETS}
    for name in FLEETS:
        for host in (fleets[name], others[name]):
            host.save(NAME, [b"record"], deadline=in_time())
            host.probe(deadline=in_time())
    fleets["blue"].flush(deadline=in_time())
    with pytest.raises(HostApart):
        found_by(others["blue"])
    for name in ("", "green"):
        assert isinstance(found_by(others[name]), Found)
    fleets["green"].flush("weights-2", deadline=in_time())
    for name in FLEETS:
        others[name].probe(deadline=in_time())
    assert [others[name].has_other_version for name in FLEETS] == [False, False, True]


def test_all_keys_of_a_fleet_have_its_prefix(server: Server, fleets: Fleets) -> None:
    del fleets[""], fleets["green"]
    records = fleets["blue"]
    records.flush("weights-2", deadline=in_time())
    records.claim(NAME, ttl_s=60.0, deadline=in_time())
    records.save(NAME, [b"record"], deadline=in_time())
    with server.client() as client:
        keys = [key.decode() for key in client.scan_iter()]
    assert len(keys) == 4
    assert all(key.startswith(key_prefix("blue")) for key in keys)


def test_a_fleet_knows_of_other_versions_of_its_own_alone(server: Server) -> None:
    with server.client() as client:
        client.set(f"{key_prefix('blue', 2)}epoch", "1")
        client.set("mmcached:epoch", "1")
    for name, expected in {"": {1: "mmcached:epoch"}, "blue": {2: "mmcached:2:fleet:blue:epoch"}, "green": {}}.items():
        with RedisBackend(read_place(url_of(server, name))) as backend:
            assert backend.other_versions(deadline=in_time()) == expected


def test_a_host_that_moves_to_another_fleet_takes_no_epoch_along(tmp_path: Path) -> None:
    path = tmp_path / "second-level.epoch"
    epoch_note("redis://host", path).write(Scope(7))
    assert epoch_note("redis://host?namespace=blue", path).read() == Scope()
    epoch_note("redis://host?namespace=blue", path).write(Scope(9, "v2"))
    assert epoch_note("redis://host", path).read() == Scope(7)
    assert epoch_note("redis://host:7/1?namespace=blue", path).read() == Scope(9, "v2")
    assert note_of(path, "blue").name == "second-level.blue.epoch"
