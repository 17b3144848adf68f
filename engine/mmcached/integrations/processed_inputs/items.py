"""Finds processed items in the store, or has one process of the host make them.

    processed-item/<processor>/<item>/counts     grid, number of placeholders, prompt updates
    processed-item/<processor>/<item>/pixels     the tensors that an encoder reads

Two records under one name: a reader of the counts does not touch the pixels. The pixels are put first, and the process
that makes an item claims its counts; so processes that wait for the counts find the pixels too, unless these were
evicted. Independent of any processor.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Claim, Client, Hit, Pending
from mmcached.shm.store.codec import Library, Record

POLL_S = 0.005
"""The shortest wait for an item that another process makes."""
NUM_QUICK = 8
"""Items that must have been processed in less than `POLL_S`, one after the other, before new ones are not claimed."""
_POLLS = 50
"""Number of polls before claims are asked for again."""
_CALL_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessedItem:
    """The output of a processor for one image, video or sound.

    Attributes:
        counts: Plain values and small tensors that the prompt and its tokens' positions depend on.
        pixels: Tensors that only the encoder reads.
    """

    counts: Record
    pixels: Record


def name_of(file: bytes) -> str:
    """Return the digest of an encoded file's content: 64 hex digits."""
    return blake3(file).hexdigest()


def keys_of(processor: str, item: str) -> tuple[str, str]:
    return f"processed-item/{processor}/{item}/counts", f"processed-item/{processor}/{item}/pixels"


def wait_for_one(client: Client, keys: Sequence[str], wait: Callable[[float], object] = time.sleep) -> None:
    """Return when one of the keys has a record, or after `_POLLS` polls: the process that makes it may have died."""
    for _ in range(_POLLS if keys else 0):
        if any(client.contains_many(keys, timeout_s=_CALL_S)):
            return
        wait(POLL_S)


class ProcessingTimes:
    """Durations of the last items' processing; a claim costs a message, and a wait for another process `POLL_S`."""

    def __init__(self) -> None:
        self._last_s: deque[float] = deque(maxlen=NUM_QUICK)

    @property
    def are_short(self) -> bool:
        """Whether to process a new item takes less time than to wait for another process that does."""
        return len(self._last_s) == NUM_QUICK and max(self._last_s) < POLL_S

    def note(self, seconds: float) -> None:
        self._last_s.append(seconds)


class ProcessedItems:
    """The processed items of one processor; threads may share it.

    Args:
        processor: All that an item depends on beside the content (class, version, configuration, arguments), as JSON
            values.
        view: Hand out pixels in place: read them, never write.
        tensors: Library of the returned tensors.
        timeout_s: How long to wait for another process that makes an item, before it is made here.

    Attributes:
        num_processed: Items that were made here.
    """

    def __init__(
        self,
        client: Client,
        processor: Mapping[str, Any],
        *,
        view: bool = False,
        tensors: Library = "torch",
        timeout_s: float = 30.0,
    ) -> None:
        self.num_processed = 0
        self._client = client
        self._processor = fingerprint(processor)
        self._view = view
        self._tensors: Library = tensors
        self._timeout_s = timeout_s
        self._lock = threading.Lock()

    def find(self, item: str) -> ProcessedItem | None:
        """Return an item if this host's store has its counts and pixels; ask no second level, and make nothing."""
        of_counts, of_pixels = keys_of(self._processor, item)
        counts = self._client.get(of_counts, tensors=self._tensors, local=True)
        if counts is None:
            return None
        pixels = self._client.get(of_pixels, view=self._view, tensors=self._tensors, local=True)
        return None if pixels is None else ProcessedItem(counts.record, pixels.record)

    def find_or_claim(self, item: str) -> ProcessedItem | Claim:
        """Return an item, or a claim on the record that it lacks: make the item, and put it with that claim.

        Waits while another process makes the item; after `timeout_s` the claim is not exclusive.
        """
        give_up = time.monotonic() + self._timeout_s
        of_counts, of_pixels = keys_of(self._processor, item)
        counts = self._hit_or_claim(of_counts, give_up, view=False)
        if isinstance(counts, Claim):
            return counts
        pixels = self._hit_or_claim(of_pixels, give_up, view=self._view)
        return pixels if isinstance(pixels, Claim) else ProcessedItem(counts.record, pixels.record)

    def get_or_process_counts(self, item: str, process: Callable[[], ProcessedItem]) -> Record:
        """Return the counts of an item; no pixels are read unless it has to be made.

        Args:
            item: A name that identifies the content, such as `name_of` its file.
            process: Makes the item; called by one of the processes that ask for it at the same time.
        """
        counts, _ = self._counts(item, process)
        return counts

    def get_or_process(self, item: str, process: Callable[[], ProcessedItem]) -> ProcessedItem:
        counts, made = self._counts(item, process)
        if made is not None:
            return made
        pixels = self._client.get_or_compute(
            keys_of(self._processor, item)[1],
            lambda: self._make(process).pixels,
            view=self._view,
            tensors=self._tensors,
            timeout_s=self._timeout_s,
        )
        return ProcessedItem(counts, pixels)

    # ---- how

    def _counts(self, item: str, process: Callable[[], ProcessedItem]) -> tuple[Record, ProcessedItem | None]:
        of_counts, of_pixels = keys_of(self._processor, item)
        made: list[ProcessedItem] = []

        def make() -> Record:
            made.append(self._make(process))
            self._client.put(of_pixels, made[0].pixels)
            return made[0].counts

        counts = self._client.get_or_compute(of_counts, make, tensors=self._tensors, timeout_s=self._timeout_s)
        return counts, made[0] if made else None

    def _hit_or_claim(self, key: str, give_up: float, *, view: bool) -> Hit | Claim:
        while True:
            (found,) = self._client.claim_many([key], view=view, tensors=self._tensors)
            if not isinstance(found, Pending):
                return found
            if time.monotonic() >= give_up:
                return Claim(key)
            wait_for_one(self._client, [key])

    def _make(self, process: Callable[[], ProcessedItem]) -> ProcessedItem:
        with self._lock:
            self.num_processed += 1
        return process()
