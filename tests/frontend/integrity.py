"""Checks that the tables of a frontend agree: records, tenants, nurseries, claims, fetches, requests, work."""

from __future__ import annotations

from typing import Any

from mmcached.cache.store_keys import ITEMS_TENANT
from mmcached.frontend.server import Frontend
from mmcached.frontend.store.claim_table import ClaimTable
from mmcached.frontend.store.fetch_table import FetchTable
from mmcached.frontend.store.nurseries import NurseryAllocator
from mmcached.frontend.store.nursery_service import NurseryService
from mmcached.frontend.store.record_store import RecordStore
from mmcached.frontend.store.store_service import StoreService
from mmcached.gateway.gateway import ModelGateway
from mmcached.gateway.processing.single_flight import SingleFlight
from mmcached.gateway.requests.clip_queue import ClipQueue
from mmcached.gateway.requests.encoder_outputs import _is_owner
from mmcached.gateway.requests.item_making import ItemMaking
from mmcached.gateway.requests.request_service import RequestService
from mmcached.gateway.requests.submission import Submission
from mmcached.shm.ring.ring import RingWriter
from mmcached.shm.store.object_store import ObjectStoreWriter
from tests.shm.integrity import check_objects


def check_records(records: RecordStore) -> None:
    """Check that every record is charged to its tenant, and that no tenant or share is over its limit."""
    in_ring, books = records.in_ring, records.in_ring.books
    if isinstance(in_ring.objects, ObjectStoreWriter):
        check_objects(in_ring.objects)
    listed = [key for each in books.by_tenant.values() for key in each.key_to_bytes]
    assert len(listed) == len(in_ring)
    assert all(in_ring.objects.find(key) is not None for key in listed)
    for tenant, of_tenant in books.by_tenant.items():
        assert all(books.tenant_of(key) == tenant for key in of_tenant.key_to_bytes)
        assert of_tenant.key_to_bytes
        assert of_tenant.num_bytes == sum(of_tenant.key_to_bytes.values())
        assert books.quota_bytes is None or tenant == ITEMS_TENANT or of_tenant.num_bytes <= books.quota_bytes
    if books.share_bytes is not None:
        of_clients = {name for name in listed if books.tenant_of(name) != ITEMS_TENANT}
        lie_in_ring = {name for name in of_clients if not in_ring.lies_in_nursery(name)}
        charged = books.clients.key_to_bytes.keys()
        # A record being copied into the ring is charged before it lies there.
        assert lie_in_ring <= charged <= of_clients
        assert books.clients.num_bytes <= books.share_bytes


def check_nurseries(books: NurseryAllocator) -> None:
    """Check that no byte of a nursery has two owners."""
    for one in books:
        kinds = (one.granted, one.prepared, one.prepared_cold, one.free, one.cold)
        stretches = [stretch for kind in kinds for stretch in kind]
        stretches += [(place.offset, place.offset + place.size) for place in one.records.values()]
        end = 0
        for begin, stop in sorted(stretches):
            assert begin >= end, f"byte {begin} of nursery {one.nursery} has two owners"
            end = stop
        assert end <= one.frontier <= one.size
    assert all(one.peer == peer for peer, one in books._peer_to_nursery.items())


def check_nursery_service(service: NurseryService) -> None:
    check_nurseries(service.books)
    ring = service._records.ring
    if isinstance(ring, RingWriter):
        ours = {slot: place for one in service.books for slot, place in one.records.items()}
        assert ours == dict(ring.placed.places())


def check_claims(table: ClaimTable) -> None:
    assert all(name == claim.name for name, claim in table._claims.items())
    requests = [waiter.request for waiter in table._waiters()]
    assert len(set(requests)) == len(requests), "a request waits twice"


def check_fetches(table: FetchTable) -> None:
    fetches = table._asked | table._elsewhere
    assert len(fetches) == len(table._asked) + len(table._elsewhere) == len(table._number_to_name)
    assert all(parked.names and parked.names <= fetches.keys() for parked in table._parked)
    assert table._to_order.keys() <= table._asked.keys()


def check_store(store: StoreService) -> None:
    check_records(store.records)
    check_nursery_service(store.nurseries)
    check_claims(store.claims)
    check_fetches(store.second_level.fetches)


def check_flights(book: SingleFlight[Any]) -> None:
    """Check that each waiter has what waits for it, and that landed work has a waiter."""
    for key, flight in book._flights.items():
        assert all(waiter.flights.get(key) is flight for waiter in flight.waiters)
        assert flight.outcome is None or flight.waiters, f"{key} has landed without a waiter"


def check_clips(queue: ClipQueue, num_in_work: int) -> None:
    """Check that no more is noted than is in work."""
    numbers = len(queue._tasks), len(queue._room), len(queue._work), sum(map(len, queue._behind.values()))
    assert max(numbers) <= num_in_work
    assert set(queue._busy.values()) <= queue._tasks.keys()


def check_making(making: ItemMaking) -> None:
    work = making._work
    check_flights(work._flights)
    check_clips(work._clips, work._flights.num_in_work)


def check_submission(submission: Submission) -> None:
    """Check that the figures of each engine are the sums over its open requests."""
    sent = [request.sent for request in submission._requests if request.sent is not None]
    assert submission.room.num_bytes == sum(each.inline_bytes for each in sent)
    for engine in submission._connections:
        has = [each for each in sent if each.engine is engine]
        counted = engine.num_open, engine.num_waiting, engine.loaded_bytes
        assert counted == (len(has), sum(e.num_waiting for e in has), sum(e.loaded_bytes for e in has))


def check_requests(service: RequestService) -> None:
    """Check outputs, work, figures of engines and streams against the open requests."""
    outputs = service.outputs
    assert {*filter(_is_owner, outputs._waits.keys())} <= {*outputs._owners.values()}, "an output has no owner"
    check_making(service.making)
    check_submission(service._verbs.submission)
    assert service.streams.due() <= {request.stream for request in service._requests}
    assert len(service._waits) == len(service._requests)


def check_frontend(frontend: Frontend) -> None:
    if isinstance(frontend.gateway, ModelGateway):
        check_requests(frontend.gateway.requests)
