"""The option `namespace` of a URL: a name of the fleet, by which several fleets share one server and see nothing of
each other.

    mmcached:3:…               keys without a namespace
    mmcached:3:fleet:NAME:…    keys of the fleet NAME: records, claims, epoch and version are its own

The 3 is `records.VERSION`.
"""

from __future__ import annotations

import re
from pathlib import Path

from mmcached.second_level.records import VERSION

_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def take_namespace(options: dict[str, str]) -> str:
    """Remove the namespace from the options of a URL and return it; "" without one.

    Raises:
        ValueError: It is no name.
    """
    if "namespace" not in options:
        return ""
    namespace = options.pop("namespace")
    if not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            "namespace must be 1 to 64 letters, digits, '.', '_' and '-', and begin with one of the first two"
        )
    return namespace


def key_prefix(namespace: str, version: int = VERSION) -> str:
    """Return the first part of a fleet's keys on the server.

    >>> key_prefix("", 3), key_prefix("blue", 3)
    ('mmcached:3:', 'mmcached:3:fleet:blue:')
    """
    return f"mmcached:{version}:" + (f"fleet:{namespace}:" if namespace else "")


def note_of(path: Path, namespace: str) -> Path:
    """Return the path of the epoch note of a fleet, beside the one without a namespace: epochs of fleets differ.

    >>> note_of(Path("/run/second-level.epoch"), "blue").name
    'second-level.blue.epoch'
    """
    return path.with_name(f"{path.stem}.{namespace}{path.suffix}") if namespace else path
