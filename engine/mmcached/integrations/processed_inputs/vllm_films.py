"""Shares the decoded and sampled frames of films between vLLM's API processes: one process of the host decodes a film.

    decoded-film/<loader>/<digest of the file>     frames, metadata

    load ──> waits to be put by this process, or in the store: frames │ claim: decoded, returned, and put meanwhile
              └──pending: wait for the other process

vLLM decodes a film before it computes the item's hash, which contains the metadata of the sampled frames. So it needs
the frames of a processed film as well. Frames on a GPU, and metadata without a form in plain values, are not shared.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from blake3 import blake3

from mmcached.cache.fingerprints import fingerprint
from mmcached.cache.output_names import PACKAGES
from mmcached.client import Claim, Client, Hit
from mmcached.integrations.processed_inputs.item_saver import RecordSaver
from mmcached.integrations.processed_inputs.items import wait_for_one
from mmcached.shm.store.codec import Record
from mmcached.wire.closeable import Closeable
from mmcached.wire.extras import package_versions

WAIT_S = 10.0
"""The longest wait for another process that decodes the film."""
_CALL_S = 1.0

Film = tuple[Any, dict[str, Any]]
"""Frames and metadata."""


class SharedFilms(Closeable):
    """The films of one API process; threads may share it.

    Args:
        client: A client that fails open.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._saver = RecordSaver(client)

    def load(self, loader: type[Any], data: bytes, *values: Any, **named: Any) -> Film:
        """Return what `loader.load_bytes` returns. Do not write into the frames: they may wait to be put."""
        key = _key(loader, data, values, named)
        found = self._record_or_claim(key)
        if not isinstance(found, Claim):
            return found["frames"], found["metadata"]
        try:
            frames, metadata = loader.load_bytes(data, *values, **named)
        except BaseException:
            found.drop()
            raise
        if isinstance(frames, np.ndarray) and _is_plain(metadata):
            self._saver.save_record(key, {"frames": frames, "metadata": metadata}, frames.nbytes, found)
        else:
            found.drop()
        return frames, metadata

    def drain(self, timeout_s: float) -> bool:
        """Wait until new films have been put; return whether that is so."""
        return self._saver.drain(timeout_s)

    def close(self) -> None:
        """Drop films that wait to be put, and end a put in progress."""
        self._saver.close()
        self._client.close()

    def _record_or_claim(self, key: str) -> Record | Claim:
        give_up = time.monotonic() + WAIT_S
        while True:
            unsaved = self._saver.record_of(key)
            if unsaved is not None:
                return unsaved
            (found,) = self._client.claim_many([key], tensors="numpy", timeout_s=_CALL_S)
            if isinstance(found, Hit):
                return found.record
            if isinstance(found, Claim):
                return found
            if time.monotonic() >= give_up:
                return Claim(key)
            wait_for_one(self._client, [key])


def share_films(loaders: dict[str, type], films: Callable[[], SharedFilms]) -> None:
    """Replace each loader of vLLM's registry by a loader that looks into the store first.

    Args:
        loaders: `VIDEO_LOADER_REGISTRY.name2class`.
        films: Returns the films of this process; called for each film.
    """
    for name, loader in loaders.items():
        if not hasattr(loader, "decodes_by"):
            loaders[name] = _shared(loader, films)


def _shared(loader: type[Any], films: Callable[[], SharedFilms]) -> type:
    class SharedLoader(loader):
        decodes_by = loader

        @classmethod
        def load_bytes(cls, data: bytes, *values: Any, **named: Any) -> Film:
            return films().load(cls.decodes_by, data, *values, **named)

    SharedLoader.__name__ = loader.__name__
    return SharedLoader


def _key(loader: type[Any], data: bytes, values: tuple[Any, ...], named: Mapping[str, Any]) -> str:
    parts = {
        "loader": f"{loader.__module__}.{loader.__qualname__}",
        "arguments": [repr(each) for each in values],
        "named": {name: repr(value) for name, value in sorted(named.items())},
        "versions": _versions(),
    }
    return f"decoded-film/{fingerprint(parts)}/{blake3(data).hexdigest()}"


@functools.cache
def _versions() -> dict[str, str | None]:
    return package_versions(PACKAGES)


def _is_plain(value: Any) -> bool:
    """Return whether a value comes back from a record with its types, which vLLM's hash depends on."""
    if type(value) is dict:
        return all(type(name) is str and _is_plain(each) for name, each in value.items())
    if type(value) is list:
        return all(_is_plain(each) for each in value)
    return value is None or type(value) in (bool, int, float, str)
