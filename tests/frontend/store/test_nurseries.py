"""The books of nurseries by themselves: who gets room, and who gives way."""

from __future__ import annotations

import random

import pytest

from mmcached.frontend.store.nurseries import KEPT_RATIO, NurseryAllocator
from mmcached.frontend.store.nursery_space import NurserySpace
from mmcached.shm.ring.nursery_table import Placed
from mmcached.wire.errors import InvariantError, StaleHandle
from tests.frontend.integrity import check_nurseries
from tests.present import present

KIB = 1 << 10
BUDGET = 4096 * KIB
RECORD = 256 * KIB
A, B = b"a", b"b"


class Client:
    """The client of one nursery, which keeps to its grants."""

    def __init__(self, books: NurseryAllocator, number: int, peer: bytes) -> None:
        self.books = books
        self.peer = peer
        self.number = number
        books.open(number, BUDGET, peer)

    @property
    def nursery(self) -> NurserySpace:
        return present(self.books.of(self.peer))

    def put(self, slot: int, size: int = RECORD) -> bool:
        """Put a record; return whether there was room for it."""
        self.books.grants(self.peer)
        offset = self.nursery.granted.find(size)
        if offset is None:
            self.books.want(self.nursery, size, found_none=True)
            return False
        one = self.books.take(self.peer, self.number, offset, size)
        self.books.keep(one, slot, Placed(self.number, offset, size))
        check_nurseries(self.books)
        return True


def make_room(books: NurseryAllocator) -> int:
    """Let the oldest records go as far as somebody needs it; return how many have gone."""
    num_gone = 0
    while found := books.needy():
        needy = found[0]
        for one in books.to_go(needy):
            if one is not needy and one.free:
                one.squeeze()
                break
            if one.records:
                slot, place = next(iter(one.records.items()))
                books.freed(slot, place)
                num_gone += 1
                break
        else:
            break
        check_nurseries(books)
    return num_gone


def test_room_is_ready_before_it_is_needed_and_the_budget_is_kept() -> None:
    books = NurseryAllocator(BUDGET)
    client = Client(books, 1, A)
    books.want(client.nursery, RECORD)
    make_room(books)
    for slot in range(100):
        assert client.put(slot), "without waiting"
        make_room(books)
        assert books.held_bytes <= BUDGET
    assert list(client.nursery.records) == sorted(client.nursery.records), "the oldest go first"
    assert len(client.nursery.records) >= BUDGET // RECORD - 4


def test_a_drained_nursery_gives_way_first_and_its_room_has_no_memory() -> None:
    books = NurseryAllocator(BUDGET)
    first, second = Client(books, 1, A), Client(books, 2, B)
    for slot in range(8):
        books.want(first.nursery, RECORD)
        make_room(books)
        assert first.put(slot)
    drained = first.nursery
    stretches = books.drain(drained)
    assert sum(end - begin for begin, end in stretches) == drained.frontier - 8 * RECORD
    assert drained.held_bytes == 8 * RECORD
    assert books.of(A) is None
    with pytest.raises(StaleHandle):
        books.take(A, 1, 0, RECORD)
    for slot in range(20, 34):
        books.want(second.nursery, RECORD)
        make_room(books)
        assert second.put(slot)
    make_room(books)
    assert not drained.records
    assert set(second.nursery.records) == set(range(20, 34))
    books.remove(drained)
    with pytest.raises(InvariantError):
        books.remove(second.nursery)


def test_two_that_put_as_much_have_as_much() -> None:
    books = NurseryAllocator(BUDGET)
    clients = [Client(books, 1, A), Client(books, 2, B)]
    for slot in range(60):
        books.want(clients[0].nursery, RECORD)
        make_room(books)
        assert clients[0].put(slot)
    for slot in range(100, 220):
        client = clients[slot % 2]
        books.want(client.nursery, RECORD)
        make_room(books)
        client.put(slot)
    first, second = (len(client.nursery.records) for client in clients)
    assert max(first, second) <= KEPT_RATIO * min(first, second)
    assert books.held_bytes <= BUDGET


def test_records_of_mixed_sizes_have_most_of_the_budget_and_what_is_ready_little() -> None:
    rng = random.Random(3)
    books = NurseryAllocator(BUDGET)
    clients = [Client(books, number, b"%d" % number) for number in range(1, 5)]
    shares = []
    for slot in range(600):
        client = rng.choice(clients)
        size = 64 * int(1024 * 2 ** rng.uniform(0, 3))  # 64 to 512 KiB
        make_room(books)
        if not client.put(slot, size):
            make_room(books)
            client.put(slot, size)
        if slot >= 200:
            shares.append(sum(place.size for one in books for place in one.records.values()) / BUDGET)
    assert sum(shares) / len(shares) > 0.5


def test_a_record_that_goes_first_makes_room_before_those_that_were_put_earlier() -> None:
    books = NurseryAllocator(BUDGET)
    client = Client(books, 1, A)
    for slot in range(3):
        books.want(client.nursery, RECORD)
        make_room(books)
        assert client.put(slot)
    books.want(client.nursery, RECORD)
    make_room(books)
    books.grants(A)
    offset = present(client.nursery.granted.find(RECORD))
    one = books.take(A, 1, offset, RECORD)
    books.keep(one, 3, Placed(1, offset, RECORD), goes_first=True)
    assert list(one.records) == [3, 0, 1, 2]


def test_between_clients_that_put_as_much_no_memory_moves() -> None:
    books = NurseryAllocator(BUDGET)
    clients = [Client(books, number, b"%d" % number) for number in range(1, 5)]
    num_cold = 0
    for slot in range(400):
        client = clients[slot % 4]
        make_room(books)
        grants = books.grants(client.peer)
        if grants is not None and slot >= 200:
            num_cold += len(grants.cold_places)
        if not client.put(slot, RECORD // 4):
            assert slot < 4
            make_room(books)
            assert client.put(slot, RECORD // 4)
    assert num_cold == 0, "a page fault for each page that is put"


def test_what_was_not_granted_is_refused() -> None:
    books = NurseryAllocator(BUDGET)
    client = Client(books, 1, A)
    books.want(client.nursery, RECORD)
    make_room(books)
    present(books.grants(A))
    assert books.grants(A) is None, "each place once"
    for peer, number, offset, size in (
        (B, 1, 0, RECORD),
        (A, 2, 0, RECORD),
        (A, 1, 32, RECORD),
        (A, 1, 0, BUDGET),
        (A, 1, BUDGET, RECORD),
    ):
        with pytest.raises(StaleHandle):
            books.take(peer, number, offset, size)
    one = books.take(A, 1, 0, RECORD)
    with pytest.raises(StaleHandle):
        books.take(A, 1, 0, RECORD)
    books.give_back(one, Placed(1, 0, RECORD))
    again = present(books.grants(A))
    assert (0, RECORD) in again.places


def test_a_client_that_puts_nothing_is_idle_also_if_others_find_no_room() -> None:
    books = NurseryAllocator(BUDGET)
    sleeper, other = Client(books, 1, A), Client(books, 2, B)
    books.want(sleeper.nursery, books.max_record_bytes)
    make_room(books)
    assert not books.is_idle(sleeper.nursery)
    for _ in range(12):
        books.came_inline(other.nursery, BUDGET // 4)
    assert books.is_idle(sleeper.nursery)
    assert not books.is_idle(other.nursery)


def test_records_of_all_sizes_and_clients_that_come_and_go() -> None:
    rng = random.Random(5)
    books = NurseryAllocator(BUDGET)
    clients: list[Client] = []
    for step in range(400):
        if len(clients) < 3 or rng.random() < 0.02:
            clients.append(Client(books, step + 1, b"%d" % step))
        if len(clients) > 4:
            books.drain(clients.pop(rng.randrange(len(clients))).nursery)
        client = rng.choice(clients)
        size = 64 * rng.randrange(1024, 8192)
        books.want(client.nursery, size)
        make_room(books)
        client.put(step, size)
        for one in books:
            if one.peer is None and not one.records:
                books.remove(one)
            elif one.records and rng.random() < 0.1:
                dropped = rng.choice(list(one.records))
                books.freed(dropped, one.records[dropped])
        assert books.held_bytes <= BUDGET
