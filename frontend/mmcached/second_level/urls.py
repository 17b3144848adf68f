"""Chooses the server that a URL names.

    redis:// rediss:// unix:// redis+sentinel:// rediss+sentinel://     Redis or Valkey: see `redis.place`
    mooncake://                                                         Mooncake Store: see `mooncake.place`

What a URL says is judged before anything is imported for it; an error never has its password.
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
    """Return what speaks to the server of a URL; it is not asked for anything yet.

    Raises:
        ConfigError: the URL is none of ours, or what it takes is not installed.
    """
    check_url(url)
    make, extra = (_of_mooncake, "mooncake") if _scheme(url) == mooncake.SCHEME else (_of_redis, "redis")
    try:
        return make(url)
    except ImportError as error:
        raise ConfigError(FIELD, shown_url(url), f"needs {how_to_install(extra)}: {error}") from None


def check_installed(url: str) -> None:
    """As `check_url`, and find what a URL takes; nothing of it is imported."""
    check_url(url)
    module = extra = "mooncake" if _scheme(url) == mooncake.SCHEME else "redis"
    if find_spec(module) is None:
        raise ConfigError(FIELD, shown_url(url), f"needs {how_to_install(extra)}")


def check_url(url: str) -> None:
    """Judge a URL by its form; nothing is opened.

    Raises:
        ConfigError: it names no server.
    """
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
