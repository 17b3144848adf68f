"""Chooses the server that a URL names, and shows a URL without what is secret in it.

    redis:// rediss:// unix:// redis+sentinel:// rediss+sentinel://     Redis or Valkey: see `redis.place`
    mooncake://                                                         Mooncake Store: see `mooncake.place`

What a URL says is judged before anything is imported for it; an error never has its password.
"""

from __future__ import annotations

from mmcached.second_level.backend import Backend
from mmcached.second_level.mooncake import place as mooncake
from mmcached.second_level.redis import place as redis
from mmcached.wire.errors import ConfigError

FIELD = "store_l2"
SCHEMES = (*redis.SCHEMES, mooncake.SCHEME)
_SHOWN_OPTIONS = redis.SHOWN_OPTIONS | mooncake.SHOWN_OPTIONS


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
        raise ConfigError(FIELD, shown_url(url), f"needs `pip install mmcached[{extra}]`: {error}") from None


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


def shown_url(url: str) -> str:
    """Return a URL as people may see it: without what is secret, well formed or not.

    >>> shown_url("redis://me:secret@host:6379/1?cluster=1&sentinel_password=secret")
    'redis://me:***@host:6379/1?cluster=1&sentinel_password=***'
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "***"
    # Up to the last @: one that is not encoded, or a slash, must not make the rest of a password visible.
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown_user = f"{user}:***@" if colon else "***@" if at else ""
    place, _, options = place.partition("#")[0].partition("?")
    shown_options = "&".join(_shown_option(option) for option in options.split("&") if option)
    return f"{scheme}://{shown_user}{place}{'?' if shown_options else ''}{shown_options}"


def _shown_option(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}{equals}{value if name in _SHOWN_OPTIONS or not value else '***'}"


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
