"""Shares the decoded and sampled frames of films between vLLM's API processes: one process of the host decodes a film.

    decoded-film/<loader>/<digest of the file>     frames, metadata

vLLM decodes a film before it computes the item's hash, which contains the metadata of the sampled frames. So it needs
the frames of a processed film as well. Frames on a GPU, and metadata without a form in plain values, are not shared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from blake3 import blake3

from mmcached.cache.fingerprints import fingerprint
from mmcached.cache.output_names import PACKAGES
from mmcached.client import Client, InvalidRequest
from mmcached.wire.extras import package_versions

WAIT_S = 10.0
"""The longest wait for another process that decodes the film."""

Film = tuple[Any, dict[str, Any]]


class _NotShared(Exception):
    """A film whose frames or metadata have no form in a record."""


def share_films(loaders: dict[str, type], client: Callable[[], Client]) -> None:
    """Replace each loader of vLLM's registry by a loader that looks into the store first.

    Args:
        loaders: `VIDEO_LOADER_REGISTRY.name2class`.
        client: Returns a client that fails open; called when the first film comes.
    """
    for name, loader in loaders.items():
        if not hasattr(loader, "decodes_by"):
            loaders[name] = _shared(loader, client)


def _shared(loader: type[Any], client: Callable[[], Client]) -> type:
    class SharedLoader(loader):
        decodes_by = loader

        @classmethod
        def load_bytes(cls, data: bytes, *values: Any, **named: Any) -> Film:
            return load(client(), cls.decodes_by, data, *values, **named)

    SharedLoader.__name__ = loader.__name__
    return SharedLoader


def load(client: Client, loader: type[Any], data: bytes, *values: Any, **named: Any) -> Film:
    """Return what `loader.load_bytes` returns; the frames are the caller's own."""
    decoded: list[Film] = []

    def decode() -> dict[str, Any]:
        decoded.append(loader.load_bytes(data, *values, **named))
        frames, metadata = decoded[0]
        if not isinstance(frames, np.ndarray) or not _is_plain(metadata):
            raise _NotShared
        return {"frames": frames, "metadata": metadata}

    try:
        record = client.get_or_compute(_key(loader, data, values, named), decode, tensors="numpy", timeout_s=WAIT_S)
    except (_NotShared, InvalidRequest):
        return decoded[0] if decoded else cast(Film, loader.load_bytes(data, *values, **named))
    return decoded[0] if decoded else (record["frames"], record["metadata"])


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
