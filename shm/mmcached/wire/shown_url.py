"""Removes secrets from URLs for display, whether they are well formed or not."""

from __future__ import annotations

SHOWN_OPTIONS = frozenset(
    {"cluster", "db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"}
    | {"host", "segment_mb", "buffer_mb"}
)
"""Options whose values are shown; any other option's value may be a secret."""


def shown_url(url: str) -> str:
    """Return a URL without secrets.

    >>> shown_url("redis://me:secret@host:6379/1?cluster=1&sentinel_password=secret")
    'redis://me:***@host:6379/1?cluster=1&sentinel_password=***'
    >>> shown_url("me:secret@host"), shown_url("")
    ('***', '')
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "***" if url else ""
    # Up to the last @: an unencoded @ or slash in a password must not make the rest of it visible.
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    shown_user = f"{user}:***@" if colon else "***@" if at else ""
    place, _, options = place.partition("#")[0].partition("?")
    shown_options = "&".join(_shown_option(option) for option in options.split("&") if option)
    return f"{scheme}://{shown_user}{place}{'?' if shown_options else ''}{shown_options}"


def _shown_option(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}{equals}{value if name in SHOWN_OPTIONS or not value else '***'}"
