"""EngineLinks and OpenRequests: who is ready, which engine has least to do, and how requests are found."""

from __future__ import annotations

from mmcached.frontend.engines.engine_links import EngineLink, EngineLinks
from mmcached.frontend.requests.open_requests import OpenRequest, OpenRequests
from mmcached.wire.messages.frontend import Encode


def request(number: int, client: str, request_id: int, engine: int = 1, deadline: float = 10.0) -> OpenRequest:
    return OpenRequest(number, b"peer", Encode(client, request_id, 5.0), [], deadline, engine)


def test_without_a_ready_engine_none_is_chosen() -> None:
    links = EngineLinks()
    links.add(EngineLink(b"a", 0, 1))
    assert links.choose(lambda _: 0) is None


def test_least_loaded_ready_engine_is_chosen() -> None:
    links = EngineLinks()
    for incarnation in (1, 2, 3):
        links.add(EngineLink(b"x", incarnation, incarnation, is_ready=incarnation != 3))
    load = {1: 2, 2: 1, 3: 0}
    chosen = links.choose(lambda link: load[link.incarnation])
    assert chosen is not None
    assert chosen.incarnation == 2


def test_links_are_found_by_all_that_names_them() -> None:
    links = EngineLinks()
    link = EngineLink(b"a", 0, 17)
    links.add(link)
    assert links.get(17) is links.by_peer(b"a") is links.by_index(0) is link
    links.remove(link)
    links.remove(link)
    assert len(links) == 0


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
    requests.add(open_one)
    requests.move(new, 1)
    requests.add(new)
    assert [requests.num_on_engine(engine) for engine in (0, 1)] == [0, 2]
    requests.move(open_one, 0)
    assert [requests.num_on_engine(engine) for engine in (0, 1)] == [1, 1]
    for each in (new, open_one, new):
        requests.take(each.number)
        requests.check_integrity()
    assert [requests.num_on_engine(engine) for engine in (0, 1)] == [0, 0]
