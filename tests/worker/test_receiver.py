"""The receiver cache of the library face: a real ring, a row of its own, leases that go back when views die."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from mmcached.cache import MultiModalFeatureSpec, MultiModalFieldElem, MultiModalKwargsItem, PlaceholderRange, ShmItem
from mmcached.shm import ObjectStoreWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheMiss, InvariantError
from mmcached.wire.handle import Handle, LeaseId
from mmcached.worker import ShmObjectStoreReceiverCache, worker_receiver_cache_from_config
from tests.worker.rings import is_inside, make_ring


@contextmanager
def pair(num_receivers: int = 1) -> Iterator[tuple[ObjectStoreWriter, list[ShmObjectStoreReceiverCache]]]:
    with ObjectStoreWriter(make_ring()) as store:
        receivers = [ShmObjectStoreReceiverCache(store.ring.announcement) for _ in range(num_receivers)]
        assert all(store.ring.attach(receiver.row, receiver.nonce) for receiver in receivers)
        yield store, receivers
        for receiver in receivers:
            receiver.close()


def send(store: ObjectStoreWriter, key: str, *, size: int = 8) -> ShmItem:
    """What the sender cache hands out: granting to every attached row counts as the send."""
    handle = store.find(key) or store.put(key, {"pixels": np.arange(size, dtype=np.int64)})
    return ShmItem(handle, {row: store.ring.grant(row, handle) for row in store.ring.attached_rows()})


def pixels(item: MultiModalKwargsItem) -> torch.Tensor:
    data = item["pixels"].data
    assert isinstance(data, torch.Tensor)
    return data


def test_an_item_is_read_in_place_and_its_lease_goes_back_with_the_last_view() -> None:
    with pair() as (store, [receiver]):
        item = receiver.get_and_update_item(send(store, "a"), "a")
        part = pixels(item)[3:]
        assert pixels(item).tolist() == list(range(8))
        assert is_inside(store.ring, part)
        assert store.stats().leases == 1
        del item
        gc.collect()
        assert receiver.flush() == 0
        assert (store.stats().leases, receiver.stats().leases_held) == (1, 1)
        del part
        assert store.stats().leases == 1, "a finalizer must not write into the row"
        assert receiver.flush() == 1
        assert (store.stats().leases, receiver.stats().leases_held) == (0, 0)
        receiver.check_integrity()
        store.check_integrity()


def test_a_lease_pins_what_is_read() -> None:
    with pair() as (store, [receiver]):
        item = receiver.get_and_update_item(send(store, "a", size=20_000), "a")
        for number in range(30):
            store.put(f"other {number}", {"pixels": np.full(20_000, number)})
            if number >= 3:
                store.discard(f"other {number - 3}")
        assert pixels(item).tolist() == list(range(20_000))
        del item
        receiver.flush()


def test_each_receiver_gives_back_its_own_lease() -> None:
    with pair(2) as (store, receivers):
        sent = send(store, "a")
        items = [receiver.get_and_update_item(sent, "a") for receiver in receivers]
        assert store.stats().leases == 2
        items.pop()
        assert [receiver.flush() for receiver in receivers] == [0, 1]
        assert store.stats().leases == 1
        items.clear()
        assert [receiver.flush() for receiver in receivers] == [1, 0]
        assert store.stats().leases == 0


def test_an_item_that_came_with_its_data_is_passed_on() -> None:
    with pair() as (_, [receiver]):
        item = MultiModalKwargsItem({"pixels": MultiModalFieldElem(torch.ones(2))})
        assert receiver.get_and_update_item(item, "a") is item
        assert (receiver.stats().items_passed, receiver.stats().items_viewed) == (1, 0)


def test_what_may_not_be_read_is_a_miss() -> None:
    with pair() as (store, [receiver]):
        sent = send(store, "a")
        lease = sent.leases[receiver.row]
        foreign = LeaseId(lease.nonce ^ 1, lease.seq)
        unread = [
            None,
            ShmItem(sent.handle, {}),
            ShmItem(sent.handle, {receiver.row + 1: lease}),
            ShmItem(sent.handle, {receiver.row: foreign}),
        ]
        for wrong in unread:
            with pytest.raises(CacheMiss) as caught:
                receiver.get_and_update_item(wrong, "a")
            assert caught.value.mm_hashes == ["a"]
        assert store.stats().leases == 1, "what was not owned is not given back"
        item = receiver.get_and_update_item(sent, "a")
        with pytest.raises(CacheMiss):
            receiver.get_and_update_item(
                sent, "a"
            )  # the same descriptor once more: its lease must not be counted twice
        del item
        assert receiver.flush() == 1
        assert store.stats().leases == 0


def test_an_owned_lease_of_a_stale_handle_is_given_back_at_once() -> None:
    with pair() as (store, [receiver]):
        sent = send(store, "a")
        names = sent.handle
        stale = Handle(names.ring_id, names.epoch, names.slot, names.generation + 1, names.offset, names.nbytes)
        with pytest.raises(CacheMiss):
            receiver.get_and_update_item(ShmItem(stale, sent.leases), "a")
        assert store.stats().leases == 0
        assert receiver.stats().leases_held == 0


def test_features_are_filled_and_all_misses_are_named_at_once() -> None:
    def feature(data: ShmItem | None, key: str) -> MultiModalFeatureSpec:
        return MultiModalFeatureSpec(data, "image", key, PlaceholderRange(0, 1))

    with pair() as (store, [receiver]):
        features = [feature(None, "x"), feature(send(store, "a"), "a"), feature(None, "y"), feature(None, "x")]
        with pytest.raises(CacheMiss) as caught:
            receiver.get_and_update_features(features)
        assert caught.value.mm_hashes == ["x", "y"]
        filled = receiver.get_and_update_features(features[1:2])[0].data
        assert isinstance(filled, MultiModalKwargsItem)
        assert pixels(filled).tolist() == list(range(8))
        del filled, features, caught  # a traceback holds the frames that saw the item
        gc.collect()
        receiver.clear_cache()
        assert store.stats().leases == 0


def test_closing_with_a_view_alive_leaves_its_bytes_readable() -> None:
    with pair() as (store, [receiver]):
        view = pixels(receiver.get_and_update_item(send(store, "a"), "a"))
        receiver.close()
        receiver.close()
        store.ring.poll_deaths()
        assert view.tolist() == list(range(8))
        store.ring.poll_deaths()
        assert store.stats().leases == 1, "the lease lives while the view does"
        del view
        store.ring.poll_deaths()
        assert store.stats().leases == 0


def test_integrity_sees_a_foreign_lease() -> None:
    with pair() as (store, [receiver]):
        sent = send(store, "a")
        receiver.check_integrity()
        receiver._held[LeaseId(receiver.nonce ^ 1, 0)] = sent.handle
        with pytest.raises(InvariantError):
            receiver.check_integrity()
        receiver._held.clear()


def test_the_factory_follows_the_configuration() -> None:
    with make_ring() as ring:
        names = ring.announcement
        assert worker_receiver_cache_from_config(ServiceConfig(mm_processor_cache_gb=0), names) is None
        assert worker_receiver_cache_from_config(ServiceConfig(is_multimodal_model=False), names) is None
        assert worker_receiver_cache_from_config(ServiceConfig(), None) is None
        receiver = worker_receiver_cache_from_config(ServiceConfig(), names, shared_worker_lock=object())
        assert isinstance(receiver, ShmObjectStoreReceiverCache)
        receiver.close()
