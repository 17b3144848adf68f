"""Finds the content keys of a request's images: small files at once, large ones in a thread that does nothing else."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from mmcached.frontend.processing.item_processor import Processing
from mmcached.frontend.processing.pool import IsWanted, Mailbox, WorkPool
from mmcached.frontend.requests.open_requests import OpenRequest
from mmcached.wire.errors import InvariantError

HASH_HERE_BYTES = 128 << 10
"""Files up to this size are hashed by the loop itself: that takes less time than to wake a thread and be woken."""


class FileOf(NamedTuple):
    """One image of a request, by its index: names the search for its key."""

    number: int
    image: int


class ItemKeys:
    """The requests whose keys are looked for; `mailbox` takes what the thread finds, as `FileOf` and its key."""

    def __init__(self, processing: Processing, mailbox: Mailbox) -> None:
        self._processing = processing
        self._hashing = WorkPool("hashing", 1, mailbox)
        self._found: dict[int, tuple[OpenRequest, dict[int, str]]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def find(self, request: OpenRequest) -> bool:
        """Give a request its keys; return False if some have to be waited for.

        Raises:
            InvalidRequest: a bad id; names the image's index.
        """
        if len(request.keys) == len(request.images):
            return True
        tenant = request.message.tenant
        found: dict[int, str] = {}
        self._found[request.number] = (request, found)
        for index, image_id in enumerate(request.image_ids):
            if image_id is not None:
                found[index] = self._processing.key_of_id(image_id, tenant, index=index)
        for index, data in enumerate(request.images):
            if index in found:
                continue
            if len(data) <= HASH_HERE_BYTES:
                found[index] = self._processing.key(data, tenant)
            else:
                call = partial(self._key, data, tenant)
                self._hashing.submit(FileOf(request.number, index), call, request.message.client_id)
        return self._is_complete(request.number)

    def take(self, file: FileOf, key: object) -> bool:
        """Take what the thread has found; return whether its request is open and has all its keys now."""
        if file.number not in self._found:
            return False
        if not isinstance(key, str):
            raise InvariantError(f"{file} has no key: {key!r}")
        self._found[file.number][1][file.image] = key
        return self._is_complete(file.number)

    def leave(self, number: int) -> None:
        """Look no further for a request's keys; an unknown one changes nothing."""
        request, _ = self._found.pop(number, (None, None))
        if request is not None:
            for index in range(len(request.images)):
                self._hashing.withdraw(FileOf(number, index))

    def close(self) -> None:
        """Drop what is not begun; a file that is hashed is waited for."""
        self._hashing.close()

    def _key(self, data: bytes, tenant: str, is_wanted: IsWanted) -> str:
        return self._processing.key(data, tenant)

    def _is_complete(self, number: int) -> bool:
        request, found = self._found[number]
        if len(found) < len(request.images):
            return False
        request.keys = [found[index] for index in range(len(request.images))]
        del self._found[number]
        return True
