"""RequestTable: requests are found by all that names them; those that an engine has are counted there."""

from __future__ import annotations

from mmcached.gateway.engines.engine_connections import EngineConnection
from mmcached.gateway.engines.engine_content import EngineContent
from mmcached.gateway.requests.open_requests import OpenRequest, RequestTable, Sent
from mmcached.wire.messages.frontend import Encode


def engine(index: int) -> EngineConnection:
    return EngineConnection(b"peer", index, index, index, EngineContent(8, 8))


def request(
    number: int, client: str, request_id: int, engine: EngineConnection | None = None, deadline: float = 10.0
) -> OpenRequest:
    made = OpenRequest(number, b"peer", Encode(client, request_id, 5.0), [], deadline)
    made.sent = None if engine is None else Sent(engine, 9, 5, [], 0, 7)
    return made


def test_requests_are_found_by_client_engine_and_deadline() -> None:
    requests = RequestTable()
    other = engine(2)
    first = request(requests.next_number(), "x", 1, engine(1))
    second = request(requests.next_number(), "x", 2, other, deadline=20.0)
    third = request(requests.next_number(), "y", 1)
    for each in (first, second, third):
        requests.add(each)
    assert requests.find("y", 1) is third
    assert requests.find("y", 2) is None
    assert requests.of_client("x") == [first, second]
    assert requests.on_engine(other) == [second]
    assert requests.expired(15.0) == [first, third]
    assert requests.clients() == {"x", "y"}
    assert requests.take(first.number) is first
    assert requests.take(first.number) is None
    assert len(requests) == 2


def test_requests_are_counted_on_the_engine_that_has_them() -> None:
    one = engine(1)

    def counted() -> tuple[int, int, int]:
        return one.num_open, one.num_waiting, one.loaded_bytes

    sent = [Sent(one, 40, num_waiting, [], 0, 8) for num_waiting in (30, 70)]
    assert counted() == (2, 100, 16)
    sent[1].prompt_computed()
    assert counted() == (2, 30, 16)
    for each in sent:
        each.end()
    assert counted() == (0, 0, 0)
