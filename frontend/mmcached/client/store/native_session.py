"""A session whose read path is in C: that of the distribution `mmcached-native`, where it is installed.

    find, contains      one call of the extension module: digests, look-up, leases, arrays, hits
    open, open_token    the leases only

Opening, mapping, locks and forks are those of `StoreSession`, which is the reference. All counts of the reader's entry
are written in C, under the GIL, so a lease is given back where its last view dies, without a queue.

The environment variable `MMCACHED_NATIVE` decides: 0 keeps to Python, 1 makes a missing module an error.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mmcached.client.store.hits import Hit, Reading
from mmcached.client.store.lease_returns import Lease, LeaseReturns
from mmcached.client.store.session import BLIND_S, UNREADABLE, Held, Place, StoreSession
from mmcached.shm import ReaderEntry
from mmcached.shm.ring.slot_table import KeyDigest
from mmcached.shm.segment.layout import LAYOUT_VERSION
from mmcached.shm.segment.mapped import layout_of
from mmcached.shm.store.codec import Library, Record
from mmcached.shm.store.object_reader import ObjectStoreReader
from mmcached.shm.store.record_head import TensorRef, read_head
from mmcached.shm.store.tensor_bytes import array_form
from mmcached.wire.errors import LocalProtocolError, RequestAborted
from mmcached.wire.handle import Handle, RingAnnouncement
from mmcached.wire.messages.parts import Inline

if TYPE_CHECKING:
    import mmcached_native as native
else:
    try:
        import mmcached_native as native
    except ImportError:
        native = None

SWITCH = "MMCACHED_NATIVE"
MAX_PLANS = 256
_LOG = logging.getLogger(__name__)
_LIBRARIES: tuple[Library, ...] = ("numpy", "torch", "bytes")


def session_type() -> type[StoreSession]:
    """Return the class of sessions for this process.

    Raises:
        ImportError: `MMCACHED_NATIVE` is 1, and the module is missing or of another version.
    """
    wanted = os.environ.get(SWITCH, "")
    if wanted == "0" or (native is None and wanted != "1"):
        return StoreSession
    if native is None:
        how = "pip install '.[native]' ./shm in a checkout of mmcached"
        raise ImportError(f"{SWITCH} is 1, and the extension is not installed: {how}")
    if native.LAYOUT_VERSION != LAYOUT_VERSION:
        reason = f"mmcached-native reads layout {native.LAYOUT_VERSION}, not {LAYOUT_VERSION}; upgrade both together"
        if wanted == "1":
            raise ImportError(reason)
        _LOG.warning("%s", reason)
        return StoreSession
    return NativeSession


class NativeReturns(LeaseReturns):
    """The leases that the module has counted in an entry: each ends with its last view."""

    def __init__(self, reader: ReaderEntry) -> None:
        ring = reader.announcement
        self.entry = native.Entry(
            words=reader.words, handle_type=Handle, ring_id=ring.ring_id, epoch=ring.epoch, num_slots=ring.num_slots
        )
        super().__init__(reader)

    def __len__(self) -> int:
        return self.entry.num_out

    def end(self, lease: Lease | native.Lease) -> None:
        cast("native.Lease", lease).end()

    def abandon(self) -> None:
        self.entry.resume(True)
        self.entry.stop()
        super().abandon()

    def _before_fork(self) -> None:
        super()._before_fork()
        self.entry.pause()

    def _after_fork(self) -> None:
        super()._after_fork()
        self.entry.resume(self.is_shared)

    def _end_reader(self) -> None:
        self.entry.stop()
        super()._end_reader()


class NativeSession(StoreSession):
    """See `StoreSession`."""

    _native: native.Reader | None = None
    _new_returns = NativeReturns

    def _become_reader(self, ring: RingAnnouncement) -> None:
        super()._become_reader(ring)
        assert self._reader is not None
        mapping, layout = self._store.reader, layout_of(ring)
        self._native = native.Reader(
            entry=cast("NativeReturns", self._returns).entry,
            pages=mapping.pages,
            reader_id=self._reader.reader_id,
            incarnation=self._reader.incarnation,
            data_bytes=ring.data_bytes,
            index_words=ring.index_words,
            board=layout.board_offset,
            slots=layout.slots_offset,
            index=layout.index_offset,
            nurseries=mapping.nurseries,
            map_nursery=mapping.map_nursery,
            unreadable=UNREADABLE,
            hit_type=Hit,
            array_type=np.ndarray,
        )
        self._forms = {
            library: (_form(self._store, library, False), _form(self._store, library, True)) for library in _LIBRARIES
        }

    def close(self) -> None:
        with self._lock:
            self._close_native()
            super().close()

    def abandon(self) -> None:
        self._close_native()
        super().abandon()

    def find(
        self,
        keys: list[str],
        tenant: str,
        reading: Reading,
        *,
        counts_misses: bool = True,
        counts_hits: bool = True,
    ) -> list[Hit | None] | None:
        module = self._native
        if module is None or not self.is_attached:
            return None
        started_ns = time.perf_counter_ns() if next(self._turns) else 0
        form, owned = self._forms[reading.tensors]
        if not reading.view:
            form = owned
        touches = counts_hits and self._counts_hits
        try:
            hits = module.find(keys, tenant, _kept_digests(tenant), form, owned, touches, counts_misses)
        except LocalProtocolError:  # the mapping was closed by another thread
            raise RequestAborted("the client was closed, or its service is another by now") from None
        if hits is False or hits is True:
            self._note_failure(is_blind=hits)
            return None
        self.seen_epoch = module.store_epoch
        if started_ns and hits.count(None) < len(hits):
            self._count_latency(time.perf_counter_ns() - started_ns)
        return hits

    def contains(self, keys: list[str], tenant: str) -> list[bool] | None:
        module = self._native
        if module is None or not self.is_attached:
            return None
        seen = module.contains(keys, tenant, _kept_digests(tenant))
        if seen is None:
            self._note_failure(is_blind=False)
        return seen

    # ---- internals

    def _take(
        self,
        places: Sequence[Place],
        held: list[Held | Inline | None],
        reader: ReaderEntry | None,
        *,
        is_beside: bool = False,
        digests: Sequence[KeyDigest] = (),
    ) -> list[Handle]:
        self._is_blind = False
        module, taken = self._native, []
        for index, place in enumerate(places):
            if not isinstance(place, Handle):
                held.append(place)
                continue
            lease = None
            if module is not None:
                at = place.slot, place.generation, place.offset, place.nbytes, place.nursery
                lease = module.take(*at, is_beside)
                if digests and (lease is None or lease is True):
                    lease = module.take_key(*digests[index])
                    if lease is True:
                        self._note_failure(is_blind=True)
            if isinstance(lease, native.Lease):
                held.append(cast("Held", (lease, lease)))
                taken.append(lease.handle)
            else:
                held.append(None)
        return taken

    def _report(self, found: list[Handle], held: Sequence[Held | Inline | None], reader: ReaderEntry) -> None:
        (each,) = held
        if self._native is not None:
            self._native.report(cast("native.Lease", each[1]) if isinstance(each, tuple) else None, self._counts_hits)

    def _note_failure(self, *, is_blind: bool) -> None:
        """Remember why no lease was taken: a record cannot be mapped, or this reader is not attached any more."""
        with self._lock:
            if is_blind:
                self._is_blind, self._blind_until = True, time.monotonic() + BLIND_S
            elif self._reader is not None:
                self._may_take(self._reader)

    def _close_native(self) -> None:
        module, self._native = self._native, None
        if module is not None:
            module.close()


@lru_cache(maxsize=16)
def _kept_digests(tenant: str) -> dict[str, bytes]:
    """Return the dict in which the module keeps the digests of a tenant's keys."""
    return {}


# ---- how records are decoded

_plans: dict[tuple[Library, bool], dict[bytes, Any]] = {
    (library, copy): {} for library in _LIBRARIES for copy in (False, True)
}
Decode = Callable[["native.Lease"], Record]


def _form(store: ObjectStoreReader, library: Library, copy: bool) -> native.Form:
    def decode(lease: native.Lease) -> Record:
        return store.decode_held(lease.handle, cast("Any", lease), tensors=library, copy=copy)

    return _plans[library, copy], partial(_make_plan, library, copy), decode


def _make_plan(library: Library, copy: bool, packed: bytes) -> Any:
    """Return how a record with this head is decoded; None: by `decode`.

    Returns:
        Bytes of the record, and a tuple for each of its names: (name, value) or (name, shape, dtype, offset, convert).

    Raises:
        RemoteProtocolError: The head is invalid.
    """
    plans, head = _plans[library, copy], read_head(packed)
    if len(plans) >= MAX_PLANS:
        plans.clear()
    fields: list[tuple[Any, ...]] = []
    for name, value in head.tree.items():
        if type(value) is TensorRef:
            kind, offset = head.tensors[value.index]
            form = array_form(kind, library, copy)
            if form is None:
                break
            shape, dtype, convert = form
            fields.append((name, shape, dtype, offset, convert))
        elif isinstance(value, dict | list):
            break
        else:
            fields.append((name, value))
    else:
        plans[packed] = head.nbytes, tuple(fields)
        return plans[packed]
    plans[packed] = None
    return None
