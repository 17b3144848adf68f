"""The receiver cache of the library face: a real ring, an entry of its own, leases that go back when views die."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from mmcached.cache import MultiModalKwargsItem
from mmcached.compat.multimodal.base import ReceiverInput
from mmcached.compat.multimodal.features import ShmItem
from mmcached.shm import ObjectStoreWriter
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import CacheFull, CacheMiss, ItemTooLarge
from mmcached.worker import ShmObjectStoreReceiverCache, worker_receiver_cache_from_config
from tests.compat.multimodal.contracts import RECEIVER_CACHE_PROMISES, ReceiverPromise, missed_by
from tests.shm.integrity import check_objects
from tests.worker.rings import is_inside, make_ring


@contextmanager
def pair(num_receivers: int = 1) -> Iterator[tuple[ObjectStoreWriter, list[ShmObjectStoreReceiverCache]]]:
    with ExitStack() as stack:
        store = stack.enter_context(ObjectStoreWriter(make_ring()))
        receivers = [
            stack.enter_context(ShmObjectStoreReceiverCache(store.ring.announcement)) for _ in range(num_receivers)
        ]
        assert all(store.ring.readers.attach(receiver.reader_id, receiver.incarnation) for receiver in receivers)
        yield store, receivers


def send(store: ObjectStoreWriter, key: str, *, size: int = 8) -> ShmItem:
    """What the sender cache hands out."""
    return ShmItem(store.find(key) or store.put(key, {"pixels": np.arange(size, dtype=np.int64)}))


def pixels(item: MultiModalKwargsItem) -> torch.Tensor:
    data = item["pixels"].data
    assert isinstance(data, torch.Tensor)
    return data


@dataclass
class FedByRing:
    """Items lie in the ring; what does not fit comes as it is."""

    cache: ShmObjectStoreReceiverCache
    store: ObjectStoreWriter

    def feed(self, request: Sequence[tuple[str, MultiModalKwargsItem | None]]) -> list[ReceiverInput]:
        for key, item in request:
            if item is None:
                self.store.touch(key)
            else:
                self.store.discard(key)
        fed = [self._feed(key, item) for key, item in request]
        self.store.release_touches()
        return fed

    def _feed(self, key: str, item: MultiModalKwargsItem | None) -> ReceiverInput:
        if item is not None and self.store.find(key) is None:
            with suppress(ItemTooLarge, CacheFull):
                self.store.put(key, item.to_record())
        handle = self.store.find(key)
        if handle is None:
            return item
        return ShmItem(handle)

    def check_rest(self) -> None:
        assert self.cache.num_held == 0
        check_objects(self.store)
        assert self.store.stats().leases == 0


@pytest.mark.parametrize("promise", RECEIVER_CACHE_PROMISES, ids=lambda promise: promise.__name__)
def test_promises(promise: ReceiverPromise) -> None:
    with pair() as (store, [receiver]):
        fed = FedByRing(receiver, store)
        promise(fed)
        fed.check_rest()


def test_an_item_is_read_in_place_and_its_lease_goes_back_with_the_last_view() -> None:
    with pair() as (store, [receiver]):
        item = receiver.get_and_update_item(send(store, "a"), "a")
        part = pixels(item)[3:]
        assert pixels(item).tolist() == list(range(8))
        assert is_inside(store.ring, part)
        assert store.stats().leases == 1
        del item
        gc.collect()
        assert (store.stats().leases, receiver.num_held) == (1, 1)
        del part
        assert (store.stats().leases, receiver.num_held) == (0, 0)


def test_what_may_not_be_read_is_a_miss() -> None:
    with pair() as (store, [receiver]), ShmObjectStoreReceiverCache(store.ring.announcement) as unknown:
        sent = send(store, "a")
        for reader, wrong in ((receiver, None), (unknown, sent)):
            with pytest.raises(CacheMiss) as caught:
                reader.get_and_update_item(wrong, "a")
            assert caught.value.mm_hashes == ["a"]
        assert store.stats().leases == 0
        items = [receiver.get_and_update_item(sent, "a") for _ in range(2)]
        assert store.stats().leases == 2, "one for each time that it is read"
        items.clear()
        assert store.stats().leases == 0


OFFSETS = {"another place": 64, "beside a payload": 1, "behind the ring": 1 << 20, "far behind": 2**63 - 1}


@pytest.mark.parametrize(
    "changes",
    [
        *({"offset": offset} for offset in OFFSETS.values()),
        {"nbytes": 0},
        {"nbytes": 2**63 - 1},
        {"nbytes": 64},
        {"generation": 0},
        {"generation": 2**63 - 1},
    ],
    ids=str,
)
def test_a_forged_handle_is_a_miss_and_ends_its_lease(changes: dict[str, Any]) -> None:
    with pair() as (store, [receiver]):
        sent = send(store, "a")
        forged = ShmItem(msgspec.structs.replace(sent.handle, **changes))
        assert missed_by(lambda: receiver.get_and_update_item(forged, "a")) == ["a"]
        assert (store.stats().leases, receiver.num_held) == (0, 0)
        again = send(store, "a")
        assert pixels(receiver.get_and_update_item(again, "a")).tolist() == list(range(8))


@pytest.mark.parametrize("changes", [{"ring_id": "0" * 32}, {"epoch": 1}], ids=str)
def test_a_handle_of_another_ring_is_a_miss_and_costs_this_one_nothing(changes: dict[str, Any]) -> None:
    with pair() as (store, [receiver]):
        sent = send(store, "a")
        foreign = ShmItem(msgspec.structs.replace(sent.handle, **changes))
        assert missed_by(lambda: receiver.get_and_update_item(foreign, "a")) == ["a"]
        assert store.stats().leases == 0
        receiver.get_and_update_item(sent, "a")


def test_closing_with_a_view_alive_leaves_its_bytes_readable() -> None:
    with pair() as (store, [receiver]):
        view = pixels(receiver.get_and_update_item(send(store, "a"), "a"))
        receiver.close()
        receiver.close()
        store.ring.readers.poll_deaths()
        assert view.tolist() == list(range(8))
        store.ring.readers.poll_deaths()
        assert store.stats().leases == 1, "the lease lives while the view does"
        del view
        store.ring.readers.poll_deaths()
        assert store.stats().leases == 0


def test_the_factory_follows_the_configuration() -> None:
    with make_ring() as ring:
        names = ring.announcement
        assert worker_receiver_cache_from_config(ServiceConfig(mm_processor_cache_gb=0), names) is None
        assert worker_receiver_cache_from_config(ServiceConfig(is_multimodal_model=False), names) is None
        assert worker_receiver_cache_from_config(ServiceConfig(), None) is None
        receiver = worker_receiver_cache_from_config(ServiceConfig(), names, shared_worker_lock=object())
        assert isinstance(receiver, ShmObjectStoreReceiverCache)
        receiver.close()
        ShmObjectStoreReceiverCache(names, object()).close()
