"""Creates the backend for a URL.

    redis:// rediss:// unix:// redis+sentinel:// rediss+sentinel://     Redis or Valkey: see `redis.place`
    mooncake://                                                         Mooncake Store: see `mooncake.place`

A URL is checked before its client library is imported; errors never contain its password.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from mmcached.second_level.backend import Backend
from mmcached.second_level.epoch_note import EpochNote
from mmcached.second_level.mooncake import place as mooncake
from mmcached.second_level.namespaces import note_of
from mmcached.second_level.redis import place as redis
from mmcached.wire.errors import ConfigError
from mmcached.wire.extras import how_to_install
from mmcached.wire.shown_url import shown_url

FIELD = "store_l2"


def _make_redis(url: str) -> Backend:
    from mmcached.second_level.redis.backend import RedisBackend

    return RedisBackend(redis.read_place(url))


def _make_mooncake(url: str) -> Backend:
    from mmcached.second_level.mooncake.backend import MooncakeBackend
    from mmcached.second_level.mooncake.start import start

    place = mooncake.read_place(url)
    return MooncakeBackend(lambda: start(place), namespace=place.namespace)


class Place(Protocol):
    """A parsed URL."""

    @property
    def namespace(self) -> str:
        """Name of the fleet; "" without one."""


class BackendKind(NamedTuple):
    """A kind of backend.

    Attributes:
        read_place: Checks a URL; raises ValueError if it is invalid.
        extra: Name of the extra, and of the module that it installs.
    """

    make: Callable[[str], Backend]
    read_place: Callable[[str], Place]
    extra: str


_KINDS = {
    **dict.fromkeys(redis.SCHEMES, BackendKind(_make_redis, redis.read_place, "redis")),
    mooncake.SCHEME: BackendKind(_make_mooncake, mooncake.read_place, "mooncake"),
}
SCHEMES = tuple(_KINDS)


def make_backend(url: str) -> Backend:
    """Return the backend for a URL, without connecting.

    Raises:
        ConfigError: The URL is invalid, or its client library is not installed.
    """
    kind = check_url(url)
    try:
        return kind.make(url)
    except ImportError as error:
        raise ConfigError(FIELD, shown_url(url), f"needs {how_to_install(kind.extra)}: {error}") from None


def epoch_note(url: str, path: Path) -> EpochNote:
    """Return the epoch note of the fleet that a valid URL names.

    Args:
        path: Path of the note of hosts without a namespace.
    """
    return EpochNote(note_of(path, check_url(url).read_place(url).namespace))


def check_installed(url: str) -> None:
    """Check a URL as `check_url`, and that its client library is installed, without importing it."""
    kind = check_url(url)
    if find_spec(kind.extra) is None:
        raise ConfigError(FIELD, shown_url(url), f"needs {how_to_install(kind.extra)}")


def check_url(url: str) -> BackendKind:
    """Return the kind of backend for a URL; raise ConfigError if the form of the URL is invalid."""
    kind = _KINDS.get(url.partition("://")[0])
    if kind is None:
        raise ConfigError(FIELD, shown_url(url), f"must begin with one of {', '.join(f'{one}://' for one in SCHEMES)}")
    try:
        kind.read_place(url)
    except ValueError as error:
        raise ConfigError(FIELD, shown_url(url), str(error)) from None
    return kind
