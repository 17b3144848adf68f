"""Creates the backend for a URL.

    redis:// rediss:// unix:// redis+sentinel:// rediss+sentinel://     Redis or Valkey: see `redis.place`
    mooncake://                                                         Mooncake Store: see `mooncake.place`

A URL is checked before its client library is imported; errors never contain its password.
"""

from __future__ import annotations

from importlib.util import find_spec

from mmcached.second_level.backend import Backend
from mmcached.second_level.mooncake import place as mooncake
from mmcached.second_level.redis import place as redis
from mmcached.wire.errors import ConfigError
from mmcached.wire.extras import how_to_install
from mmcached.wire.shown_url import shown_url

FIELD = "store_l2"
SCHEMES = (*redis.SCHEMES, mooncake.SCHEME)


def make_backend(url: str) -> Backend:
    """Return the backend for a URL, without connecting.

    Raises:
        ConfigError: The URL is invalid, or its client library is not installed.
    """
    check_url(url)
    make, extra = (_of_mooncake, "mooncake") if _scheme(url) == mooncake.SCHEME else (_of_redis, "redis")
    try:
        return make(url)
    except ImportError as error:
        raise ConfigError(FIELD, shown_url(url), f"needs {how_to_install(extra)}: {error}") from None


def check_installed(url: str) -> None:
    """Check a URL as `check_url`, and that its client library is installed, without importing it."""
    check_url(url)
    module = extra = "mooncake" if _scheme(url) == mooncake.SCHEME else "redis"
    if find_spec(module) is None:
        raise ConfigError(FIELD, shown_url(url), f"needs {how_to_install(extra)}")


def check_url(url: str) -> None:
    """Check the form of a URL; ConfigError if it is invalid."""
    scheme = _scheme(url)
    if scheme not in SCHEMES:
        raise ConfigError(FIELD, shown_url(url), f"must begin with one of {', '.join(f'{one}://' for one in SCHEMES)}")
    try:
        if scheme == mooncake.SCHEME:
            mooncake.read_place(url)
        else:
            redis.read_place(url)
    except ValueError as error:
        raise ConfigError(FIELD, shown_url(url), str(error)) from None


def _scheme(url: str) -> str:
    return url.partition("://")[0]


def _of_redis(url: str) -> Backend:
    from mmcached.second_level.redis.backend import RedisBackend

    return RedisBackend(redis.read_place(url))


def _of_mooncake(url: str) -> Backend:
    from mmcached.second_level.mooncake.backend import MooncakeBackend
    from mmcached.second_level.mooncake.start import start

    place = mooncake.read_place(url)
    return MooncakeBackend(lambda: start(place))
