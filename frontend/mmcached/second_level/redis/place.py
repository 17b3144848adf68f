"""Parses the URL of a Redis or Valkey. Imports nothing of redis-py.

    redis://[[user]:password@]host[:6379][/db]          rediss:// for TLS
    redis://…?cluster=1                                 any node of a cluster
    unix://[[user]:password@]/path/of/socket[?db=0]
    redis+sentinel://[[user]:password@]host[:26379],host…/service[/db]      rediss+sentinel:// for TLS

    with TLS    ssl_ca_certs, ssl_certfile, ssl_keyfile: paths; ssl_check_hostname=0
    sentinels   sentinel_username, sentinel_password: their own
    all         namespace: name of the fleet, see `namespaces`

User, password and path are percent-encoded where necessary. Unknown options are refused, because a misspelled setting
would have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from mmcached.second_level.namespaces import take_namespace

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
PORT, SENTINEL_PORT = 6379, 26379
_TLS_PATHS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_BOOLEANS: Mapping[str, bool] = {"1": True, "true": True, "0": False, "false": False}

_HOST = re.compile(r"[\w.:%-]+", re.ASCII)

Address = tuple[str, int]
Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RedisPlace:
    """The address of a server, and the login.

    Attributes:
        addresses: Addresses of the server, of one node of the cluster, or of the sentinels; empty with a `path`.
        path: Path of a unix socket.
        service: The master's name among sentinels.
        tls: redis-py's options of a TLS connection; None without TLS.
        namespace: Name of the fleet; "" without one.
    """

    kind: Literal["one", "cluster", "sentinel"]
    addresses: tuple[Address, ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: Options | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    namespace: str = ""


def read_place(url: str) -> RedisPlace:
    """Return the parsed URL of one of `SCHEMES`; ValueError, without the URL, if it is invalid."""
    parts = urlsplit(url)
    if parts.fragment or "@" in parts.path + parts.query:
        raise ValueError("user, password and path must be percent-encoded, as %40 for @")
    options = _options(parts.query)
    credentials, _, hosts = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    login: Options = {
        "username": unquote(user) or None,
        "password": unquote(password) or None,
        "namespace": take_namespace(options),
    }
    if parts.scheme == "unix":
        place = _socket_place(hosts, unquote(parts.path), options, login)
    elif parts.scheme.endswith("+sentinel"):
        place = _sentinel_place(hosts, parts.path, _tls(parts.scheme, options), options, login)
    else:
        place = _server_place(hosts, parts.path, _tls(parts.scheme, options), options, login)
    if options:
        raise ValueError(f"knows no option {next(iter(options))} with {parts.scheme}://")
    return place


def _socket_place(hosts: str, path: str, options: dict[str, str], login: Options) -> RedisPlace:
    if hosts or len(path) < 2:
        raise ValueError("must have the path of a socket: unix:///path/of/socket")
    return RedisPlace("one", path=path, db=_number("db", options.pop("db", "0")), **login)


def _server_place(hosts: str, path: str, tls: Options | None, options: dict[str, str], login: Options) -> RedisPlace:
    address = _address(hosts, PORT)
    if _boolean("cluster", options.pop("cluster", "0")):
        if path.strip("/"):
            raise ValueError("must have no database: a cluster has only one")
        return RedisPlace("cluster", (address,), tls=tls, **login)
    return RedisPlace("one", (address,), db=_number("database", path.strip("/") or "0"), tls=tls, **login)


def _sentinel_place(hosts: str, path: str, tls: Options | None, options: dict[str, str], login: Options) -> RedisPlace:
    addresses = tuple(_address(host, SENTINEL_PORT) for host in hosts.split(","))
    service, _, db = path.strip("/").partition("/")
    if not service:
        raise ValueError("must name the master's service: redis+sentinel://host:26379/service")
    return RedisPlace(
        "sentinel",
        addresses,
        service=unquote(service),
        db=_number("database", db or "0"),
        tls=tls,
        sentinel_username=options.pop("sentinel_username", None),
        sentinel_password=options.pop("sentinel_password", None),
        **login,
    )


def _tls(scheme: str, options: dict[str, str]) -> Options | None:
    if not scheme.startswith("rediss"):
        return None
    found: dict[str, Any] = {name: options.pop(name) for name in _TLS_PATHS if name in options}
    found["ssl_check_hostname"] = _boolean("ssl_check_hostname", options.pop("ssl_check_hostname", "1"))
    return found


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    if len(options) < bool(query) + query.count("&"):
        raise ValueError("must have each option once, as name=value")
    return options


def _address(text: str, port: int) -> Address:
    split = urlsplit(f"//{text}")
    try:
        host, its_port = split.hostname, split.port
    except ValueError:
        raise ValueError("must have a port between 1 and 65535") from None
    if not _HOST.fullmatch(host or "") or split.path or split.username is not None:
        raise ValueError("must name a host")
    if its_port == 0:
        raise ValueError("must have a port between 1 and 65535")
    return host or "", its_port or port


def _number(what: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise ValueError(f"must have a number as {what}")
    return int(text)


def _boolean(what: str, text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"{what} must be 1 or 0")
    return _BOOLEANS[text]
