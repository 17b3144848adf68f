"""Parses the URL of a Mooncake Store. Imports nothing of Mooncake.

    mooncake://MASTER[:50051][?host=…][&segment_mb=512][&buffer_mb=128][&namespace=…]

    host          this host's address for other hosts; default: its address on the route to the master
    segment_mb    memory that this process lends to all hosts; 0 if others do, with `mooncake_client`
    buffer_mb     memory that values pass through
    namespace     name of the fleet, see `namespaces`

Unknown options are refused, because a misspelled setting would have no effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from mmcached.second_level.namespaces import take_namespace

SCHEME = "mooncake"
PORT = 50051
SEGMENT_MB, BUFFER_MB = (0, 1 << 20), (64, 1 << 16)
"""Minimum and maximum. A buffer holds a whole value, and a client has several at a time."""
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")


@dataclass(frozen=True, slots=True)
class MooncakePlace:
    """The address of a master, and this process's role in the store.

    Attributes:
        master: As host:port.
        host: Address of this process for others; "" if it is to be found out.
        namespace: Name of the fleet; "" without one.
    """

    master: str
    host: str = ""
    segment_bytes: int = 512 << 20
    buffer_bytes: int = 128 << 20
    namespace: str = ""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.master.rpartition(":")
        return host, int(port)


def read_place(url: str) -> MooncakePlace:
    """Return the parsed URL; ValueError, without the URL, if it is invalid."""
    parts = urlsplit(url)
    if parts.fragment or parts.path.strip("/") or "@" in parts.netloc:
        raise ValueError("must be mooncake://host:port, without a user and a path: Mooncake asks for no password")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if len(options) < bool(parts.query) + parts.query.count("&"):
        raise ValueError("must have each option once, as name=value")
    host = options.pop("host", "")
    if host:
        _check_host("host", host)
    place = MooncakePlace(
        _master(parts.netloc),
        host,
        _megabytes("segment_mb", options.pop("segment_mb", "512"), SEGMENT_MB),
        _megabytes("buffer_mb", options.pop("buffer_mb", "128"), BUFFER_MB),
        take_namespace(options),
    )
    if options:
        raise ValueError(f"knows no option {next(iter(options))} with {SCHEME}://")
    return place


def _master(netloc: str) -> str:
    host, colon, port = netloc.partition(":")
    _check_host("master", host)
    if colon and not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 1 << 16):
        raise ValueError("must have a port between 1 and 65535")
    return f"{host}:{int(port) if colon else PORT}"


def _check_host(what: str, host: str) -> None:
    if not _HOST.fullmatch(host):
        raise ValueError(f"must have a name or an IPv4 address as {what}")


def _megabytes(name: str, text: str, limits: tuple[int, int]) -> int:
    least, most = limits
    if not (text.isascii() and text.isdigit() and len(text) < 8 and least <= int(text) <= most):
        raise ValueError(f"{name} must be between {least} and {most}")
    return int(text) << 20
