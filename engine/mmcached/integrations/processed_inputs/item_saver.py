"""Puts processed items and decoded films into the store while the requests that they were made for go on.

    save ──> waits, found by `get` ──> pixels put ──> counts put, which ends the claim: other processes find the item
              └──no room, refused, too late or closed──> the claim ends; `on_lost`

One thread of each saver puts in order, each record some time after its request has gone on. What waits holds at most
`MAX_UNSAVED_BYTES`; it consists of the objects of the host program, which must not write into them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mmcached.client import Claim, Client
from mmcached.client.saver import NotKept, Saver
from mmcached.integrations.processed_inputs.items import ProcessedItem, keys_of
from mmcached.shm.store.codec import Record
from mmcached.wire.closeable import Closeable

MAX_UNSAVED_BYTES = 512 << 20
"""Maximum bytes of all items, or of all films, that wait to be put."""
DELAY_S = 0.02
"""Seconds from `save` to the put, in which the request leaves this process: a copy beside that would slow it down."""
_SMALL_BYTES = 1024
PUT_S = 1.0
"""Deadline of each put. A service that does not answer then costs the thread's time alone."""

ItemT = TypeVar("ItemT")


@dataclass(slots=True)
class _Unsaved(Generic[ItemT]):
    name: str
    item: ItemT
    has_pixels: bool


class RecordSaver(Closeable):
    """Records that wait to be put; any thread may call any method."""

    def __init__(self, client: Client) -> None:
        self._records: dict[str, Record] = {}
        self._saver = Saver(
            client, max_bytes=MAX_UNSAVED_BYTES, delay_s=DELAY_S, timeout_s=PUT_S, on_end=self._note_end
        )

    def save_record(self, key: str, record: Record, nbytes: int = _SMALL_BYTES, claim: Claim | None = None) -> None:
        """Queue a record to be put after those that wait, without waiting.

        Args:
            nbytes: Size of the record.
            claim: Claim on the key; it ends with this save.
        """
        self._records[key] = record
        epoch, cost_s = (None, 0.0) if claim is None else (claim.store_epoch, claim.cost_s())
        self._saver.save(key, nbytes, lambda: record, store_epoch=epoch, cost_s=lambda: cost_s, claim=claim)

    def record_of(self, key: str) -> Record | None:
        """Return a record of `save_record` whose save has not ended."""
        return self._records.get(key)

    def drain(self, timeout_s: float) -> bool:
        """Wait until no save is open; return whether that is so."""
        return self._saver.drain(timeout_s)

    def close(self) -> None:
        """Drop waiting saves, and end the thread after a put in progress; the client stays open."""
        self._saver.close()

    def _note_end(self, key: str, outcome: str) -> None:
        self._records.pop(key, None)


class ItemSaver(RecordSaver, Generic[ItemT]):
    """The items of one processor that wait to be put, and other records.

    Args:
        processor: Fingerprint of the processor.
        on_lost: Called with the name and the item when a save has ended without a record: in the saver's thread, or
            within `save`. Until it returns the item is found by `get`.
        counts_only: Put no pixels.
    """

    def __init__(
        self,
        client: Client,
        processor: str,
        on_lost: Callable[[str, ItemT], None],
        *,
        counts_only: bool = False,
    ) -> None:
        super().__init__(client)
        self._processor = processor
        self._on_lost = on_lost
        self._counts_only = counts_only
        self._unsaved: dict[str, _Unsaved[ItemT]] = {}  # by key of the counts, or of the pixels

    def get(self, name: str) -> ItemT | None:
        """Return an item whose save has not ended."""
        unsaved = self._unsaved.get(keys_of(self._processor, name)[0])
        return None if unsaved is None else unsaved.item

    def save(
        self,
        name: str,
        item: ItemT,
        nbytes: int,
        to_processed: Callable[[ItemT], ProcessedItem],
        claim: Claim | None = None,
    ) -> None:
        """Queue an item to be put, without waiting.

        Args:
            name: Identifies the content.
            nbytes: Size of the item.
            to_processed: Returns the records of `item`, or raises `NotKept`; runs in the saver's thread.
            claim: Claim on the counts or the pixels of the item; it ends with this save.
        """
        of_counts, of_pixels = keys_of(self._processor, name)
        if of_counts in self._unsaved:
            if claim is not None:
                claim.drop()
            return
        unsaved = _Unsaved(name, item, has_pixels=self._counts_only)
        self._unsaved[of_counts] = self._unsaved[of_pixels] = unsaved
        processed = functools.cache(lambda: to_processed(item))

        def counts() -> Record:
            if not unsaved.has_pixels:
                raise NotKept
            return processed().counts

        epoch = None if claim is None else claim.store_epoch
        cost_s = 0.0 if claim is None else claim.cost_s()
        claims = {} if claim is None else {claim.key: claim}
        pixels = functools.partial(_pixels, processed)
        if self._counts_only or self._saver.save(
            of_pixels, nbytes, pixels, store_epoch=epoch, claim=claims.get(of_pixels)
        ):
            size = nbytes if self._counts_only else _SMALL_BYTES  # the pixels have been put by then
            self._saver.save(
                of_counts, size, counts, store_epoch=epoch, cost_s=lambda: cost_s, claim=claims.get(of_counts)
            )
            return
        if claim is not None:
            claim.drop()
        self._note_end(of_counts, "dropped")

    def _note_end(self, key: str, outcome: str) -> None:
        unsaved = self._unsaved.get(key)
        if unsaved is None:
            super()._note_end(key, outcome)
        elif key == keys_of(self._processor, unsaved.name)[1]:
            unsaved.has_pixels = outcome == "saved"
            del self._unsaved[key]
        else:
            if outcome != "saved" or not unsaved.has_pixels:
                self._on_lost(unsaved.name, unsaved.item)
            del self._unsaved[key]


def _pixels(processed: Callable[[], ProcessedItem]) -> Record:
    return processed().pixels
