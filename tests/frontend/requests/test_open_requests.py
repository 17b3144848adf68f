"""OpenRequests: requests are found, and counted, by all that names them."""

from __future__ import annotations

from mmcached.frontend.requests.open_requests import OpenRequest, OpenRequests
from mmcached.wire.messages.frontend import Encode


def request(number: int, client: str, request_id: int, engine: int = 1, deadline: float = 10.0) -> OpenRequest:
    return OpenRequest(number, b"peer", Encode(client, request_id, 5.0), [], deadline, engine)


def test_requests_are_found_by_client_engine_and_deadline() -> None:
    requests = OpenRequests()
    first = request(requests.next_number(), "x", 1)
    second = request(requests.next_number(), "x", 2, engine=2, deadline=20.0)
    third = request(requests.next_number(), "y", 1)
    for each in (first, second, third):
        requests.add(each)
    assert requests.find("y", 1) is third
    assert requests.find("y", 2) is None
    assert requests.of_client("x") == [first, second]
    assert requests.on_engine(2) == [second]
    assert requests.expired(15.0) == [first, third]
    assert requests.clients() == {"x", "y"}
    assert requests.take(first.number) is first
    assert requests.take(first.number) is None
    assert len(requests) == 2


def test_requests_are_counted_on_the_engine_that_has_them() -> None:
    requests = OpenRequests()
    new, open_one = request(1, "x", 1, engine=0), request(2, "x", 2)

    def counted() -> list[tuple[int, int]]:
        requests.check_integrity()
        return [(requests.num_on_engine(engine), requests.tokens_on_engine(engine)) for engine in (0, 1)]

    requests.add(open_one)
    requests.move(open_one, 1, 30)
    requests.move(new, 1, 70)
    requests.add(new)
    assert counted() == [(0, 0), (2, 100)]
    requests.move(open_one, 0, 20)
    assert counted() == [(1, 20), (1, 70)]
    requests.prompt_computed(new)
    assert counted() == [(1, 20), (1, 0)]
    for each in (new, open_one, new):
        requests.take(each.number)
        requests.check_integrity()
    assert counted() == [(0, 0), (0, 0)]
