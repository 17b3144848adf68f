"""Saves records in a thread of its own, so that the caller goes on at once.

    save ──space?──> waits ──its turn──> made, offered to the store: saved | refused | failed
              │           └──too old──> dropped
              └──none──> dropped

A record is made in the saver's thread: a copy from a device, or out of a buffer, does not delay the caller. Waiting
saves hold at most `max_bytes`; a key that waits already is not added twice, and the record of a key that has one is not
made; except while hits are verified: then both are compared. A claim that a save is given ends with the save, however
that ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.client.store.claims import Claim
from mmcached.client.synchronous import Client
from mmcached.shm.store.codec import Record
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import MmcachedError

_LOG = logging.getLogger("mmcached.client")


class NotKept(Exception):
    """The record of a save is not kept, for a reason that its caller knows; raised by `make`, counted as refused."""


@dataclass(frozen=True, slots=True)
class SaverCounters:
    """Counters of a saver; they never decrease.

    Attributes:
        saved: Keys that have a record now.
        dropped: Saves dropped for lack of space or time.
        refused: Records that the store has not kept: it is full or missing, or they are too large for it; and those of
            which `make` has raised `NotKept`.
        failed: Records that could not be made, or are invalid.
    """

    saved: int = 0
    dropped: int = 0
    refused: int = 0
    failed: int = 0


class _Save(NamedTuple):
    key: str
    nbytes: int
    make: Callable[[], Record]
    asked_at: float
    tenant: str | None
    store_epoch: int | None
    cost_s: Callable[[], float] | None
    claim: Claim | None


class Saver(Closeable):
    """A thread that puts records into the store; it starts with the first save.

    Args:
        max_bytes: Maximum bytes of all waiting records.
        max_wait_s: Seconds after which a waiting record is dropped.
        delay_s: Seconds that each save waits at least: the time in which the caller ends its own work, which the copy
            of a large record would slow down.
        timeout_s: Deadline of each put.
        on_end: Called with key and "saved", "dropped", "refused" or "failed", in the thread where the save ends.
        clock: Monotonic time in seconds.
    """

    def __init__(
        self,
        client: Client,
        *,
        max_bytes: int,
        max_wait_s: float = 30.0,
        delay_s: float = 0.0,
        timeout_s: float = 5.0,
        on_end: Callable[[str, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._max_wait_s = max_wait_s
        self._delay_s = delay_s
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._clock = clock
        self._counts: Counter[str] = Counter()
        self._news = threading.Condition()
        self._waiting: deque[_Save] = deque()
        self._keys: set[str] = set()
        self._num_open = 0  # with the save whose end is being reported, whose key may come again already
        self._num_bytes = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def counters(self) -> SaverCounters:
        with self._news:
            return SaverCounters(**self._counts)

    @property
    def waiting_bytes(self) -> int:
        return self._num_bytes

    def save(
        self,
        key: str,
        nbytes: int,
        make: Callable[[], Record],
        *,
        tenant: str | None = None,
        store_epoch: int | None = None,
        cost_s: Callable[[], float] | None = None,
        claim: Claim | None = None,
    ) -> bool:
        """Queue a record to be saved, without waiting; return False if it was dropped for lack of space.

        Args:
            nbytes: Bytes that `make` holds until it has run, about the size of its record.
            make: Returns the record; runs in the saver's thread, at most once. Objects that it refers to must not
                change.
            tenant, store_epoch: As for `Client.put`.
            cost_s: Returns the argument `cost_s` of `Client.put`; runs in the saver's thread, after `make`.
            claim: Claim on the key. It ends with this save, also if that is dropped now.
        """
        save = _Save(key, nbytes, make, self._clock(), tenant, store_epoch, cost_s, claim)
        with self._news:
            is_known = key in self._keys
            is_taken = not (is_known or self._is_closed or self._num_bytes + nbytes > self._max_bytes)
            if is_taken:
                self._keys.add(key)
                self._num_open += 1
                self._num_bytes += nbytes
                self._waiting.append(save)
                self._have_thread()
                self._news.notify_all()
        if is_known and claim is not None:
            claim.drop()
        if not (is_known or is_taken):
            self._end(save, "dropped")
        return is_known or is_taken

    def drain(self, timeout_s: float) -> bool:
        """Wait until the queue is empty; return whether it is."""
        with self._news:
            return self._news.wait_for(lambda: not self._num_open, timeout_s)

    def close(self) -> None:
        """Drop waiting saves, and end the thread after a put in progress. A second call does nothing."""
        with self._news:
            self._is_closed = True
            self._news.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # ---- the thread

    def _have_thread(self) -> None:
        # Also in a forked child, where the parent's thread does not exist.
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="mmcached saver", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                left_s = self._waiting[0].asked_at + self._delay_s - self._clock()
                if left_s > 0 and not self._is_closed:
                    self._news.wait(left_s)
                    continue
                save, is_closed = self._waiting.popleft(), self._is_closed
            is_late = is_closed or self._clock() - save.asked_at > self._max_wait_s
            self._end(save, "dropped" if is_late else self._put(save))
            nbytes = save.nbytes
            del save  # releases the objects that `make` refers to
            with self._news:
                self._num_open -= 1
                self._num_bytes -= nbytes
                self._news.notify_all()

    def _put(self, save: _Save) -> str:
        try:
            if self._client.contains_many([save.key], timeout_s=self._timeout_s, tenant=save.tenant)[0]:
                return "saved" if not self._client.is_verifying() or self._is_same(save) else "refused"
            is_stored = self._client.put(
                save.key,
                save.make(),  # before the cost, which is known once the device has done the work
                timeout_s=self._timeout_s,
                tenant=save.tenant,
                store_epoch=save.store_epoch,
                cost_s=None if save.cost_s is None else save.cost_s(),
                claim=save.claim,
            )
            return "saved" if is_stored else "refused"
        except NotKept as error:
            _LOG.debug("%s is not kept: %s", save.key, error)
            return "refused"
        except MmcachedError as error:
            _LOG.warning("a record could not be saved: %s", error)
        except Exception:  # any error of the host's tensors: go on with the next save
            _LOG.exception("a record could not be made")
        return "failed"

    def _is_same(self, save: _Save) -> bool:
        """Compare a record with that of its key; False if both differ, and then the store refuses the name."""
        hit = self._client.get(save.key, view=True, timeout_s=self._timeout_s, tenant=save.tenant, local=True)
        return hit is None or self._client.verified(save.key, hit.record, save.make(), tenant=save.tenant)

    def _end(self, save: _Save, outcome: str) -> None:
        if save.claim is not None:
            save.claim.drop()
        with self._news:
            self._keys.discard(save.key)
            self._counts[outcome] += 1
        if self._on_end is not None:
            self._on_end(save.key, outcome)
