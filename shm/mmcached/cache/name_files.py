"""Keeps the rows of output names in the run directory, so that `mmcached inspect` can show and compare them.

    <run dir>/names/<name>.json      the rows of one name, see `output_names.ROWS`

Each process that names outputs writes them; no process depends on these files. Unlike records they survive a flush, and
a full store. The oldest are deleted beyond `MAX_NAMES`: a server whose weights change has many names.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mmcached.cache.output_names import ROWS, output_name
from mmcached.wire.errors import ConfigError, ServiceUnavailable
from mmcached.wire.paths import RunDir

MAX_NAMES = 256
_NAMED = re.compile(r"(?:encoder|conditioning)/([0-9a-f]{32})/")


def note_name(run_dir: Path, rows: Mapping[str, Any]) -> str:
    """Return the name of rows, and write the rows to the run directory if it is writable.

    Raises:
        KeyError, TypeError, ValueError: As `output_name`.
    """
    name = output_name(rows)
    with suppress(OSError, ConfigError, ServiceUnavailable):
        RunDir(run_dir).check()
        _write(run_dir / "names", name, json.dumps(rows, sort_keys=True))
    return name


def read_name(run_dir: Path, name: str) -> dict[str, Any] | None:
    """Return the rows of a name; None if they are not known here."""
    try:
        rows = json.loads((run_dir / "names" / f"{name}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return rows if isinstance(rows, dict) and rows.keys() == ROWS.keys() else None


def known_names(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of all names that are known in a run directory, the newest first."""
    found = {}
    with suppress(OSError):
        ages = sorted(
            ((file.stat().st_mtime_ns, file.stem) for file in (run_dir / "names").glob("*.json")), reverse=True
        )
        found = {name: read_name(run_dir, name) for _, name in ages}
    return {name: rows for name, rows in found.items() if rows is not None}


def name_in(key: str) -> str | None:
    """Return the name in the key of an encoder output; None if it is no such key.

    >>> name_in("encoder/" + 32 * "f" + "/image/aaaa"), name_in("my record")
    ('ffffffffffffffffffffffffffffffff', None)
    """
    found = _NAMED.match(key)
    return None if found is None else found[1]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the parts in which two names differ, as paths such as `libraries.torch`, with both values.

    >>> list(differences({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": 1, "c": 3}}))
    [('a.c', 2, 3), ('d', [1], None)]
    """
    for name in sorted({*one, *other}):
        mine, its = one.get(name), other.get(name)
        if isinstance(mine, Mapping) and isinstance(its, Mapping):
            yield from ((f"{name}.{path}", first, second) for path, first, second in differences(mine, its))
        elif mine != its:
            yield name, mine, its


def _write(folder: Path, name: str, text: str) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{name}.json"
    if path.exists():
        os.utime(path)  # the newest stay
        return
    unfinished = folder / f"{name}.{secrets.token_hex(8)}.tmp"
    unfinished.write_text(text)
    unfinished.replace(path)
    ages = sorted((file.stat().st_mtime_ns, file) for file in folder.iterdir())
    for _, file in ages[:-MAX_NAMES]:
        file.unlink(missing_ok=True)
