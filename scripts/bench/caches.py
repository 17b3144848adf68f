"""Measures what comes before the ring: content keys, the processor caches on both sides, and the decoders.

hashing     a key against its digest alone, and against vLLM's for the same parts
classes     LRU, mirror (sender, receiver) and ring (both in one) against vLLM's classes: one item, one call of the
            library face. The item is a photograph's worth of pixels. Both sides do what their caller does: sender and
            receiver touch, then get and update. A miss of the ring copies the item in; a hit hands out where it lies
processing  items per second of two decoders, beside one and beside threads; a hit beside running work

vLLM is measured where it is installed: `make bench-peers`. Without it the limits are left.
"""

from __future__ import annotations

import importlib
import itertools
import os
import random
import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from blake3 import blake3

from mmcached.cache import MultiModalCache, MultiModalFieldElem, MultiModalKwargsItem
from mmcached.cache import MultiModalProcessorCacheItemMetadata as Metadata
from mmcached.cache.hasher import MultiModalHasher
from mmcached.engine import MultiModalReceiverCache
from mmcached.frontend import MultiModalProcessorSenderCache, ShmObjectStoreSenderCache
from mmcached.shm import ObjectStoreWriter, RingWriter
from mmcached.wire.config import MIB, ServiceConfig
from mmcached.worker import ShmObjectStoreReceiverCache
from scripts.bench import harness
from scripts.bench.harness import Call, Row, Section, calls_row
from scripts.bench.peers import load_vllm
from scripts.bench.processing import pool_rows

REPEATS = 5
QUICK_REPEATS = 2
LARGE_BYTES = int(4.7 * (1 << 20))
SMALL_BYTES = 64
PARTS = {
    "modality": "image",
    "fingerprint": "mmcached image 1; patch 32, at most 64; 64000000 pixels, 67108864 bytes; Pillow 12.0.0",
    "tenant": "",
}
CACHE_GB = 1 / 8
ITEM_BYTES = 1 * MIB
KEYS = 64
CONFIG = ServiceConfig(mm_processor_cache_gb=CACHE_GB, mm_shm_cache_max_object_size_mb=16, mm_shm_inline_max_kb=0)


def hash_rows(repeats: int) -> Iterator[Row]:
    """Yield a key against BLAKE3 alone over the same bytes, then the fixed cost of a key against vLLM's, where the
    content is next to nothing.
    """
    hasher = MultiModalHasher()
    large, small = random.Random(0).randbytes(LARGE_BYTES), random.Random(0).randbytes(SMALL_BYTES)
    yield calls_row(
        "hasher: a key",
        "4.7 MiB",
        lambda: hasher.item_key(hasher.content_digest(large), **PARTS),
        peer="blake3 alone",
        peer_call=lambda: blake3(large).hexdigest(),
        calls=1,
        repeats=60 * repeats,
    )
    load_vllm()
    theirs = importlib.import_module("vllm.multimodal.hasher").MultiModalHasher
    for name, ours in (
        ("hasher: fixed cost of item_key", lambda: hasher.item_key(hasher.content_digest(small), **PARTS)),
        ("hasher: fixed cost of hash_kwargs", lambda: hasher.hash_kwargs(content=small, **PARTS)),
    ):
        yield calls_row(
            name,
            "64 bytes of content",
            ours,
            peer="vLLM hash_kwargs",
            peer_call=lambda: theirs.hash_kwargs("blake3", content=small, **PARTS),
            calls=300,
            repeats=4 * repeats,
        )


class Vllm:
    """vLLM's modules, and its settings as stand-ins. Raises `Unavailable`."""

    def __init__(self) -> None:
        _, self.inputs = load_vllm()
        self.caches = importlib.import_module("vllm.multimodal.cache")
        self.base = importlib.import_module("vllm.multimodal.cache.base")
        settings = SimpleNamespace(mm_processor_cache_gb=CACHE_GB, mm_shm_cache_max_object_size_mb=16)
        self.model_config = SimpleNamespace(get_multimodal_config=lambda: settings)
        self.config = SimpleNamespace(model_config=self.model_config, parallel_config=SimpleNamespace(world_size=1))
        os.environ["VLLM_OBJECT_STORAGE_SHM_BUFFER_NAME"] = f"cache-peers-{secrets.token_hex(8)}"

    def item(self, data: torch.Tensor) -> Any:
        element = self.inputs.MultiModalFieldElem(data=data, field=self.inputs.MultiModalBatchedField())
        return self.inputs.MultiModalKwargsItem({"pixel_values": element})


def class_rows(repeats: int) -> list[Row]:
    peers = Vllm()
    pixels = torch.zeros(ITEM_BYTES, dtype=torch.uint8)
    mine = MultiModalKwargsItem({"pixel_values": MultiModalFieldElem(pixels)})
    theirs = peers.item(pixels)
    return [
        *_lru_rows(peers, mine, theirs, repeats),
        *_mirror_rows(peers, mine, theirs, repeats),
        *_ring_rows(peers, mine, theirs, repeats),
    ]


def _lru_rows(peers: Vllm, mine: Any, theirs: Any, repeats: int) -> list[Row]:
    ours = MultiModalCache.get_lru_cache(CACHE_GB, Metadata)
    peer = peers.base.MultiModalCache.get_lru_cache(CACHE_GB, peers.base.MultiModalProcessorCacheItemMetadata)
    my_value, their_value = Metadata(mine, ()), peers.base.MultiModalProcessorCacheItemMetadata(theirs, ())
    my_keys, their_keys = _new_keys(), _new_keys()
    known = [f"known {index}" for index in range(KEYS)]

    def fill() -> None:
        for key in known:
            ours[key] = my_value
            peer[key] = their_value

    def set_row() -> Row:
        return calls_row(
            "LRU cache: set",
            "evicts one",
            lambda: ours.put(next(my_keys), my_value),
            peer="vLLM LRUCache",
            peer_call=lambda: peer.__setitem__(next(their_keys), their_value),
            calls=500,
            repeats=4 * repeats,
        )

    def get_row() -> Row:
        my_known, their_known = itertools.cycle(known), itertools.cycle(known)
        return calls_row(
            "LRU cache: get",
            "there",
            lambda: ours.get(next(my_known)),
            peer="vLLM LRUCache",
            peer_call=lambda: peer.get(next(their_known)),
            calls=500,
            repeats=4 * repeats,
        )

    first = set_row()
    fill()
    return [first, get_row()]


def _mirror_rows(peers: Vllm, mine: Any, theirs: Any, repeats: int) -> list[Row]:
    """Mode `lru`: P0 keeps the size and the updates, P1 the item."""
    sender: Any = MultiModalProcessorSenderCache(CONFIG)
    receiver: Any = MultiModalReceiverCache(CONFIG)
    peer_sender = peers.caches.LruKeyReplicatedSenderCache(peers.model_config)
    peer_receiver = peers.caches.LruKeyReplicatedReceiverCache(peers.model_config)
    rows = []
    for name, ours, my_item, peer, their_item in (
        ("lru sender", sender, (mine, ()), peer_sender, (theirs, ())),
        ("lru receiver", receiver, mine, peer_receiver, theirs),
    ):
        my_keys, their_keys = _new_keys(), _new_keys()
        missed = _use(ours, my_item, my_keys), _use(peer, their_item, their_keys)
        rows.append(_mirror_row(f"{name}: miss", *missed, repeats))
        for key in itertools.islice(_known(), KEYS):
            ours.get_and_update([my_item], [key])
            peer.get_and_update([their_item], [key])
        rows.append(_mirror_row(f"{name}: hit", _use(ours, None, _known()), _use(peer, None, _known()), repeats))
    return rows


def _mirror_row(name: str, ours: Call, theirs: Call, repeats: int) -> Row:
    return calls_row(name, "1 MiB", ours, peer="vLLM", peer_call=theirs, calls=200, repeats=4 * repeats)


def _ring_rows(peers: Vllm, mine: Any, theirs: Any, repeats: int) -> list[Row]:
    """Mode `shm`: the sender grants to the one reader, which reads at once, as a request's worker does."""
    with _our_ring() as (sender, receiver), _their_ring(peers) as (peer_sender, peer_receiver):

        def pass_on(of: Any, to: Any, given: Any, keys: Iterator[str]) -> Any:
            def run() -> None:
                key = next(keys)
                of.touch_sender_cache_item(key)
                ((item, _),) = of.get_and_update([given], [key])
                to.touch_receiver_cache_item(key, item)
                to.get_and_update_item(item, key)
                of.release_sender_touches()

            return run

        for key in itertools.islice(_known(), KEYS):
            pass_on(sender, receiver, (mine, ()), iter([key]))()
            pass_on(peer_sender, peer_receiver, (theirs, ()), iter([key]))()
        hit = calls_row(
            "shm sender and receiver: hit",
            "1 MiB, one reader",
            pass_on(sender, receiver, None, _known()),
            peer="vLLM",
            peer_call=pass_on(peer_sender, peer_receiver, None, _known()),
            calls=50,
            repeats=4 * repeats,
        )
        miss = calls_row(
            "shm sender and receiver: miss",
            "1 MiB, one reader",
            pass_on(sender, receiver, (mine, ()), _new_keys()),
            peer="vLLM",
            peer_call=pass_on(peer_sender, peer_receiver, (theirs, ()), _new_keys()),
            calls=50,
            repeats=4 * repeats,
        )
        return [hit, miss]


@contextmanager
def _our_ring() -> Iterator[tuple[Any, Any]]:
    with ExitStack() as stack:
        ring = stack.enter_context(
            RingWriter.create(data_bytes=CONFIG.ring_data_bytes, max_object_bytes=CONFIG.max_object_bytes)
        )
        sender = ShmObjectStoreSenderCache(CONFIG, ObjectStoreWriter(ring))
        stack.callback(sender.close)
        receiver = ShmObjectStoreReceiverCache(ring.announcement)
        stack.callback(receiver.close)
        if not ring.readers.attach(receiver.reader_id, receiver.incarnation):
            raise RuntimeError("the receiver was not accepted")
        yield sender, receiver


@contextmanager
def _their_ring(peers: Vllm) -> Iterator[tuple[Any, Any]]:
    sender = peers.caches.ShmObjectStoreSenderCache(peers.config)
    try:
        receiver = peers.caches.ShmObjectStoreReceiverCache(peers.config, _NoLock())
        yield sender, receiver
    finally:
        sender.close()


class _NoLock:
    """The lock that its readers share; there is one reader."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _use(cache: Any, item: Any, keys: Iterator[str]) -> Any:
    def run() -> None:
        cache.get_and_update([item], [next(keys)])

    return run


def _new_keys() -> Iterator[str]:
    return (f"{number:064x}" for number in itertools.count())


def _known() -> Iterator[str]:
    return itertools.cycle([f"known {index}" for index in range(KEYS)])


SECTIONS: dict[str, Section] = {"hashing": hash_rows, "classes": class_rows, "processing": pool_rows}


def open_sections(undo: ExitStack) -> Mapping[str, Section]:
    torch.set_num_threads(1)
    return SECTIONS


if __name__ == "__main__":
    harness.main("keys, processor caches and processing", SECTIONS, open_sections, rounds=(REPEATS, QUICK_REPEATS))
