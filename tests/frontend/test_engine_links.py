"""EngineLinks and OpenRequests: who is ready, which engine has least to do, and how requests are found."""

from __future__ import annotations

import pytest

from mmcached.frontend.engine_links import EngineLinks
from mmcached.frontend.open_requests import OpenRequest, OpenRequests
from mmcached.wire.errors import ServiceUnavailable
from mmcached.wire.messages.frontend import Encode


def request(number: int, client: str, request_id: int, engine: bytes = b"e", deadline: float = 10.0) -> OpenRequest:
    return OpenRequest(number, b"peer", Encode(client, request_id, 5.0), [], deadline, engine)


def test_no_ready_engine_is_retryable() -> None:
    links = EngineLinks()
    links.hello(b"a", 1)
    with pytest.raises(ServiceUnavailable):
        links.choose(lambda _: 0)


def test_least_loaded_ready_engine_is_chosen() -> None:
    links = EngineLinks()
    for peer in (b"a", b"b", b"c"):
        links.hello(peer, 1).is_ready = peer != b"c"
    assert links.choose({b"a": 2, b"b": 1, b"c": 0}.__getitem__).peer == b"b"


def test_another_incarnation_behind_a_connection_starts_anew() -> None:
    links = EngineLinks()
    link = links.hello(b"a", 1)
    link.is_ready, link.row = True, 3
    assert links.hello(b"a", 1) is link
    assert links.with_row(3) is link
    assert not links.hello(b"a", 2).is_ready
    assert links.with_row(3) is None


def test_requests_are_found_by_client_engine_and_deadline() -> None:
    requests = OpenRequests()
    first = request(requests.next_number(), "x", 1)
    second = request(requests.next_number(), "x", 2, engine=b"f", deadline=20.0)
    third = request(requests.next_number(), "y", 1)
    for each in (first, second, third):
        requests.add(each)
    assert requests.find("y", 1) is third
    assert requests.find("y", 2) is None
    assert requests.of_client("x") == [first, second]
    assert requests.on_engine(b"f") == [second]
    assert requests.expired(15.0) == [first, third]
    assert requests.clients() == {"x", "y"}
    assert requests.take(first.number) is first
    assert requests.take(first.number) is None
    assert len(requests) == 2
