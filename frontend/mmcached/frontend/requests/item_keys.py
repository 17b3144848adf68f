"""Finds the keys of a request's files: small files at once, large ones in a thread that does nothing else."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from mmcached.frontend.processing.item_processor import Processing
from mmcached.frontend.processing.media import Medium
from mmcached.frontend.processing.pool import IsWanted, Mailbox, WorkPool
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.wire.errors import InvariantError

HASH_HERE_BYTES = 128 << 10
"""Files up to this size are hashed by the loop itself: that takes less time than to wake a thread and be woken."""


class FileOf(NamedTuple):
    """One file of a request, by its index: names the search for its key."""

    number: int
    medium: int


class ItemKeys:
    """The requests whose keys are looked for; `mailbox` takes what the thread finds, as `FileOf` and its key."""

    def __init__(self, processing: Processing, mailbox: Mailbox) -> None:
        self._processing = processing
        self._hashing = WorkPool("hashing", 1, mailbox)
        self._looking: dict[int, OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._looking)

    def find(self, request: OpenRequest) -> bool:
        """Give a request its keys; return False if some have to be waited for.

        Raises:
            InvalidRequest: a bad id; names the image's index.
        """
        tenant = request.message.tenant
        if request.number in self._looking:
            return False
        for index, medium in enumerate(request.media):
            if medium.key:
                continue
            if medium.name is not None:
                medium.key = self._processing.key_of_name(medium, tenant)
            elif len(medium.data) <= HASH_HERE_BYTES:
                medium.file_key, medium.key = self._processing.keys(medium, tenant)
            else:
                self._looking[request.number] = request
                call = partial(self._keys, medium, tenant)
                self._hashing.submit(FileOf(request.number, index), call, request.message.client_id)
        return request.number not in self._looking

    def take(self, file: FileOf, keys: object) -> bool:
        """Take what the thread has found; return whether its request is open and has all its keys now."""
        request = self._looking.get(file.number)
        if request is None:
            return False
        if not isinstance(keys, tuple):
            raise InvariantError(f"{file} has no key: {keys!r}")
        medium = request.media[file.medium]
        medium.file_key, medium.key = keys
        if all(each.key for each in request.media):
            del self._looking[file.number]
            return True
        return False

    def leave(self, number: int) -> None:
        """Look no further for a request's keys; an unknown one changes nothing."""
        request = self._looking.pop(number, None)
        if request is not None:
            for index in range(len(request.media)):
                self._hashing.withdraw(FileOf(number, index))

    def close(self) -> None:
        """Drop what is not begun; a file that is hashed is waited for."""
        self._hashing.close()

    def _keys(self, medium: Medium, tenant: str, is_wanted: IsWanted) -> tuple[str, str]:
        return self._processing.keys(medium, tenant)
