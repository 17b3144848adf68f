"""Finds the keys of a request's items: hashes its files, and has its clips cut into slices unless these are known.

    small file ──hashed by the loop──┐
    large file ──hashed in a thread──┴──> clip? ──> in the store, or the second level, or cut: see `clip_work`

The thread does nothing else than hashing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from mmcached.gateway.processing.item_processor import Processing
from mmcached.gateway.processing.media import Medium
from mmcached.gateway.processing.pool import IsWanted, Mailbox, WorkPool
from mmcached.gateway.requests.clip_queue import UnusableFile
from mmcached.gateway.requests.clip_records import ClipRecords
from mmcached.gateway.requests.clip_work import Cut
from mmcached.gateway.requests.item_work import ItemWork, Joined, Work, named
from mmcached.gateway.requests.open_requests import OpenRequest
from mmcached.gateway.requests.waits import Verb, Wait
from mmcached.wire.errors import CacheMiss, InvariantError

HASH_HERE_BYTES = 128 << 10
"""Files up to this size are hashed by the loop itself: that takes less time than to wake a thread and be woken."""


@dataclass(frozen=True, slots=True, eq=False)
class FileToHash:
    """A file that a thread hashes."""

    medium: Medium

    def take(self, keys: object) -> None:
        """Take the keys of the file, or the thread's error."""
        if isinstance(keys, tuple):
            self.medium.file_key, self.medium.key = keys


class ItemKeys:
    """Finds keys; `mailbox` takes the results of the hashing thread, with a `FileToHash` as token."""

    def __init__(self, processing: Processing, records: ClipRecords, work: ItemWork, mailbox: Mailbox) -> None:
        self._processing = processing
        self._records = records
        self._work = work
        self._hashing = WorkPool("hashing", 1, mailbox)

    def find(self, request: OpenRequest, joined: Joined) -> Verb[None]:
        """Give a request the keys of its items; keys that it already has stay.

        Raises:
            InvalidRequest: Often a subclass: an invalid id or clip; names its index.
            CacheMiss: The slices of clips that came as digests only are not known; names the digests.
            ServiceUnavailable: Too many items would wait.
        """
        yield from self._hash(request)
        clips = [medium for medium in request.media if medium.options is not None and not medium.slices]
        if clips:
            yield from self._cut(request, clips, joined)

    def close(self) -> None:
        """Drop all hashing that has not begun, and wait for the file that is being hashed."""
        self._hashing.close()

    def _hash(self, request: OpenRequest) -> Verb[None]:
        tenant, wait = request.message.tenant, Wait()
        unknown = [medium for medium in request.media if not medium.key]
        try:
            for medium in unknown:
                if medium.name is not None:
                    medium.key = self._processing.key_of_name(medium, tenant)
                elif len(medium.data) <= HASH_HERE_BYTES:
                    medium.file_key, medium.key = self._processing.keys(medium, tenant)
                else:
                    file = FileToHash(medium)
                    wait.keys.add(file)
                    self._hashing.submit(file, partial(self._keys, medium, tenant), request.message.client_id)
            if wait.keys:
                yield wait
        finally:
            for each in wait.keys:
                self._hashing.withdraw(each)
        if without := [medium.field for medium in unknown if not medium.key]:
            raise InvariantError(f"{without[0]} has no key")

    def _keys(self, medium: Medium, tenant: str, is_wanted: IsWanted) -> tuple[str, str]:
        return self._processing.keys(medium, tenant)

    def _cut(self, request: OpenRequest, clips: list[Medium], joined: Joined) -> Verb[None]:
        """Find the slices of clips."""
        unknown = self._unknown(clips, request.message.tenant)
        to_fetch = [medium.key for medium in unknown if medium.key not in self._work]
        if to_fetch:
            yield from self._records.fetch(request, to_fetch)
            unknown = self._unknown(unknown, request.message.tenant)
        if without := [medium.content for medium in unknown if not medium.data]:
            raise CacheMiss(list(dict.fromkeys(without)))
        self._work.join(joined, [Work(medium) for medium in unknown])
        yield from joined.landed()
        outcomes = joined.outcomes()
        for medium in unknown:
            outcome = outcomes[medium.key]
            if isinstance(outcome, UnusableFile):
                raise named(outcome.error, medium.field)
            if isinstance(outcome, Cut):
                medium.slices = list(outcome.slices)

    def _unknown(self, clips: list[Medium], tenant: str) -> list[Medium]:
        """Return the clips without a record of their slices; the other ones get their slices."""
        for medium in clips:
            medium.slices = self._records.slices(tenant, medium.key)
        return [medium for medium in clips if not medium.slices]
