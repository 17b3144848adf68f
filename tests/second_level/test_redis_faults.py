"""Servers that die, stall, are full, refuse or lie: no call returns wrong bytes, and each ends by its deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from mmcached.second_level.backend import BackendError, BackendLate, BackendRefused
from mmcached.second_level.breaker import FAILURES, FAIR_S, CircuitOpen
from mmcached.second_level.records import Found, Missed
from mmcached.second_level.shared_records import SharedRecords
from mmcached.second_level.urls import make_backend
from tests.second_level.conftest import MakeRecords, in_time
from tests.second_level.hostile import Stand, cut_after, passing_on, saying, saying_and_closing, stall_after, trickle
from tests.second_level.servers import EPOCH, Server, short_folder

NAMES = [f"{number:064x}" for number in range(4)]
RECORDS = {name: os.urandom(200_000) for name in NAMES}
SHORT_S = 0.05
"""The deadline of a call that cannot be answered."""


def save_all(records: SharedRecords) -> None:
    for name, record in RECORDS.items():
        records.save(name, [record], deadline=in_time())


def outcomes(records: SharedRecords, deadline: float) -> list[str]:
    """Return "right" or why not for each name; fail on a wrong byte."""
    found = records.get_many(NAMES, deadline=deadline)
    return [_outcome(name, one) for name, one in zip(NAMES, found, strict=True)]


def _outcome(name: str, found: Found | Missed) -> str:
    if isinstance(found, Missed):
        return found.reason
    assert b"".join(found.pieces) == RECORDS[name]
    return "right"


def until_right(records: SharedRecords) -> None:
    """Ask until all is found, whatever fails before."""
    deadline = in_time()
    while True:
        try:
            if outcomes(records, in_time()) == ["right"] * 4:
                return
            save_all(records)
        except BackendError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


# ---- servers that are not there, or not in time


def test_a_server_that_is_killed_fails_each_call_and_is_found_again(
    own_server: Server, make_records: MakeRecords
) -> None:
    records = make_records(own_server.url)
    save_all(records)
    own_server.kill()
    with pytest.raises(BackendError):
        outcomes(records, in_time())
    for _ in range(FAILURES - 1):
        with pytest.raises(BackendError, match="not reached"):
            outcomes(records, in_time())
    with pytest.raises(CircuitOpen, match="not reached"):
        outcomes(records, in_time())
    own_server.start()
    until_right(records)
    assert records.breaker.state == "closed"


def test_a_server_that_stands_still_is_late(own_server: Server, make_records: MakeRecords) -> None:
    records, fresh = make_records(own_server.url), make_records(own_server.url)
    save_all(records)
    own_server.stop()
    with pytest.raises(BackendLate):
        outcomes(records, time.monotonic() + SHORT_S)
    with pytest.raises(BackendLate):
        outcomes(fresh, time.monotonic() + SHORT_S)
    with pytest.raises(BackendLate):
        records.save(NAMES[0], [bytes(20 << 20)], deadline=time.monotonic() + SHORT_S)
    own_server.go_on()
    assert outcomes(records, in_time()) == ["right"] * 4


def test_a_call_without_time_is_late_and_no_failure(server: Server, make_records: MakeRecords) -> None:
    records = make_records(server.url)
    for _ in range(2 * FAILURES):
        with pytest.raises(BackendLate):
            outcomes(records, time.monotonic())
    assert outcomes(records, in_time()) == ["absent"] * 4


def test_a_host_that_answers_nothing_is_late(make_records: MakeRecords) -> None:
    records = make_records("redis://192.0.2.1:6379")  # reserved: nobody is there
    with pytest.raises(BackendError):
        outcomes(records, time.monotonic() + SHORT_S)


def test_a_connection_that_comes_too_late_serves_the_next_call(server: Server) -> None:
    with closing(make_backend(server.url)) as backend:
        with pytest.raises(BackendLate):
            backend.get_many([], deadline=time.monotonic() + 1e-9)
        backend.get_many([], deadline=in_time())
        with server.client() as client:
            connected = [one for one in client.client_list() if one["cmd"] != "client|list"]
        assert len(connected) == 1


# ---- servers that have no room, or forbid it


def test_a_full_server_refuses_and_is_read_on(own_server: Server, make_records: MakeRecords) -> None:
    records = make_records(own_server.url)
    save_all(records)
    with own_server.client() as client:
        client.config_set("maxmemory", 1)
    for _ in range(2 * FAILURES):
        with pytest.raises(BackendRefused, match="memory"):
            records.save("ff" * 32, [bytes(100)], deadline=in_time())
    assert outcomes(records, in_time()) == ["right"] * 4


def test_a_server_that_evicts_has_misses(own_server: Server, make_records: MakeRecords) -> None:
    records = make_records(own_server.url)
    with own_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 4_000_000)
        seen: set[str] = set()
        for number in range(400):  # which of them the server gives up is chance
            if {"right", "absent"} <= seen:
                break
            with suppress(BackendRefused):  # what is being sent takes memory, too
                save_all(records)
                records.save(f"{1000 + number:064x}", [bytes(200_000)], deadline=in_time())
            seen |= set(outcomes(records, in_time()))
        assert {"right", "absent"} <= seen <= {"right", "absent", "epoch"}
        assert client.info("stats")["evicted_keys"] > 0


def test_a_server_that_was_emptied_has_misses(server: Server, make_records: MakeRecords) -> None:
    records = make_records(server.url)
    save_all(records)
    with server.client() as client:
        client.flushall()
    assert outcomes(records, in_time()) == ["absent"] * 4
    save_all(records)
    assert outcomes(records, in_time()) == ["right"] * 4


def test_a_replica_is_read_and_refuses_the_rest(own_server: Server, make_records: MakeRecords) -> None:
    records = make_records(own_server.url)
    save_all(records)
    with own_server.client() as client:
        client.config_set("replica-serve-stale-data", "yes")
        client.replicaof("192.0.2.1", "6379")
    assert outcomes(records, in_time()) == ["right"] * 4
    for call in (
        lambda: records.flush(deadline=in_time()),
        lambda: records.claim(NAMES[0], ttl_s=1.0, deadline=in_time()),
        lambda: records.save("ff" * 32, [b"x"], deadline=in_time()),
    ):
        with pytest.raises(BackendRefused, match="read only"):
            call()


def test_a_wrong_password_is_said_and_not_shown(own_server: Server, make_records: MakeRecords) -> None:
    with own_server.client() as client:
        client.config_set("requirepass", "right")
    with pytest.raises(BackendError, match=r"(?i)auth|password") as refused:
        outcomes(make_records(own_server.url.replace("unix://", "unix://:secret@")), in_time())
    assert "secret" not in str(refused.value)
    with pytest.raises(BackendError, match=r"(?i)auth"):
        outcomes(make_records(own_server.url), in_time())
    save_all(make_records(own_server.url.replace("unix://", "unix://:right@")))


def test_a_user_needs_these_commands_and_no_others(own_server: Server, make_records: MakeRecords) -> None:
    with own_server.client() as client:
        client.execute_command("ACL SETUSER mmc on >p@ss ~mmcached:* +get +getrange +set +eval +del")
        client.execute_command("ACL SETUSER reader on >p@ss ~mmcached:* +get +getrange")
    records = make_records(own_server.url.replace("unix://", "unix://mmc:p%40ss@"))
    save_all(records)
    assert records.claim(NAMES[0], ttl_s=1.0, deadline=in_time())
    records.drop_claim(NAMES[0], deadline=in_time())
    reader = make_records(own_server.url.replace("unix://", "unix://reader:p%40ss@"))
    assert outcomes(reader, in_time()) == ["right"] * 4
    with pytest.raises(BackendRefused, match="permission"):
        reader.flush(deadline=in_time())


# ---- what lies under a name


Damage = Callable[[Server, str], object]


def _with_key(damage: Callable[..., object]) -> Damage:
    def act(server: Server, name: str) -> object:
        with server.client() as client:
            return damage(client, f"mmcached:3:record:{name}")

    return act


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_with_key(lambda client, key: client.setrange(key, 0, b"X")), "foreign"),
        (_with_key(lambda client, key: client.setrange(key, 8, b"\xff")), "version"),
        (_with_key(lambda client, key: client.setrange(key, 16, b"\xff")), "corrupt"),
        (_with_key(lambda client, key: client.setrange(key, 100_000, b"not what was there")), "corrupt"),
        (_with_key(lambda client, key: client.append(key, b"X")), "cut"),
        (_with_key(lambda client, key: client.set(key, client.getrange(key, 0, 100_000))), "cut"),
        (_with_key(lambda client, key: client.set(key, client.getrange(key, 0, 20))), "cut"),
        (_with_key(lambda client, key: client.set(key, b"")), "cut"),
        (_with_key(lambda client, key: client.copy(f"mmcached:3:record:{NAMES[1]}", key, replace=True)), "other"),
        (_with_key(lambda client, key: [client.delete(key), client.rpush(key, b"a list")]), "absent"),
        (_with_key(lambda client, key: client.pexpire(key, 0)), "absent"),
    ],
)
def test_damage_is_a_miss_until_the_record_is_saved_anew(
    server: Server, make_records: MakeRecords, damage: Damage, reason: str
) -> None:
    records = make_records(server.url)
    save_all(records)
    damage(server, NAMES[0])
    assert outcomes(records, in_time()) == [reason, "right", "right", "right"]
    save_all(records)
    assert outcomes(records, in_time()) == ["right"] * 4


@pytest.mark.parametrize("epoch", [b"", b"-1", b"word", b"1e3", b"99999999999999999999", b"1" * 1000, None])
def test_what_tells_no_epoch_is_replaced(server: Server, make_records: MakeRecords, epoch: bytes | None) -> None:
    records = make_records(server.url)
    save_all(records)
    with server.client() as client:
        client.delete(EPOCH)
        if epoch is None:
            client.rpush(EPOCH, "a list")
        else:
            client.set(EPOCH, epoch)
    assert outcomes(records, in_time()) == ["right"] * 4
    with server.client() as client:
        assert client.get(EPOCH) == b"%019d" % records.epoch


# ---- servers that lie, and ways that break


@pytest.fixture
def stand_for() -> Iterator[Callable[..., Stand]]:
    with ExitStack() as undo:
        folder = undo.enter_context(short_folder())
        yield lambda behave: undo.enter_context(Stand(folder / "stand", behave))


LIES = {
    "no reply": b"HTTP/1.1 200 OK\r\n\r\n",
    "zeros": bytes(1000),
    "a line without an end": b"+" + b"x" * 200_000,
    "a huge value": b"$99999999999\r\n",
    "a value above the limit": b"$33554537\r\n",
    "a length below -1": b"$-2\r\n",
    "a length that is none": b"$1_0\r\n",
    "a length that is a word": b"$ten\r\n",
    "a huge list": b"*99999999\r\n" * 1000,
    "a value without its end": b"$3\r\nabcdef\r\n" * 9,
    "numbers": b":1\r\n" * 9,
    "a number that is none": b":\xff\r\n",
    "words": b"+OK\r\n" * 9,
    "the same value": b"$100\r\n" + b"x" * 100 + b"\r\n",
    "an error": b"-ERR no\r\n",
    "errors": b"-ERR no\r\n" * 100,
    "it loads": b"-LOADING soon\r\n" * 5,
    "it moved": b"-MOVED 1 there:1\r\n" * 5,
    "it moved nowhere": b"-MOVED\r\n" * 5,
    "an error without text": b"-\r\n" * 5,
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_no_lie_is_believed(stand_for: Callable[..., Stand], make_records: MakeRecords, lie: bytes) -> None:
    records = make_records(stand_for(saying(lie)).url)
    for _ in range(3):
        with suppress(BackendError):
            assert "right" not in outcomes(records, time.monotonic() + SHORT_S)
        with suppress(BackendError):
            assert not records.claim(NAMES[0], ttl_s=1.0, deadline=time.monotonic() + SHORT_S) or lie.startswith(b"+OK")
        if not lie.startswith(b"+OK"):
            with pytest.raises(BackendError):
                records.flush(deadline=time.monotonic() + SHORT_S)


@pytest.mark.parametrize("said", [b"", b"$100000\r\nabc", b"$3\r\nabc", b"$"])
def test_a_server_that_hangs_up_is_said(
    stand_for: Callable[..., Stand], make_records: MakeRecords, said: bytes
) -> None:
    records = make_records(stand_for(saying_and_closing(said)).url)
    with pytest.raises(BackendError, match=r"closed|broke"):
        outcomes(records, in_time())


def test_an_answer_too_many_is_nobody_elses(stand_for: Callable[..., Stand]) -> None:
    stand = stand_for(saying(b"$19\r\n%019d\r\n$1\r\n2\r\n" % 1))
    with closing(make_backend(stand.url)) as backend:
        for _ in range(3):
            assert backend.get_many([], deadline=in_time()) == (1, [])


@pytest.mark.parametrize(("num_bytes", "num_right"), [(1, 0), (30, 0), (150, 0), (100_000, 0), (300_000, 1)])
def test_a_way_that_breaks_in_a_record_loses_that_and_what_follows(
    server: Server, stand_for: Callable[..., Stand], make_records: MakeRecords, num_bytes: int, num_right: int
) -> None:
    save_all(make_records(server.url))
    broken = make_records(stand_for(passing_on(server.socket, cut_after(num_bytes))).url)
    for _ in range(2):
        if num_right:
            assert outcomes(broken, in_time()) == ["right"] * num_right + ["failed"] * (4 - num_right)
        else:
            with pytest.raises(BackendError):
                outcomes(broken, in_time())
    assert outcomes(make_records(server.url), in_time()) == ["right"] * 4


def test_what_came_before_the_deadline_is_not_lost_with_the_rest(
    server: Server, stand_for: Callable[..., Stand], make_records: MakeRecords
) -> None:
    save_all(make_records(server.url))
    slow = make_records(stand_for(passing_on(server.socket, stall_after(500_000))).url)
    assert outcomes(slow, time.monotonic() + 0.5) == ["right", "right", "late", "late"]
    assert slow.breaker.state == "closed"
    with pytest.raises(BackendLate):
        outcomes(slow, time.monotonic() + SHORT_S)


def test_calls_with_hardly_any_time_do_not_open_the_circuit(
    stand_for: Callable[..., Stand], make_records: MakeRecords
) -> None:
    records = make_records(stand_for(saying(b"")).url)
    for _ in range(2 * FAILURES):
        with pytest.raises(BackendLate):
            outcomes(records, time.monotonic() + 0.002)
    for _ in range(FAILURES):
        with pytest.raises(BackendLate):
            outcomes(records, time.monotonic() + 2 * FAIR_S)
    with pytest.raises(CircuitOpen):
        outcomes(records, in_time())


def test_a_server_that_trickles_is_late(
    server: Server, stand_for: Callable[..., Stand], make_records: MakeRecords
) -> None:
    save_all(make_records(server.url))
    slow = make_records(stand_for(passing_on(server.socket, trickle)).url)
    with pytest.raises(BackendLate):
        outcomes(slow, time.monotonic() + SHORT_S)
