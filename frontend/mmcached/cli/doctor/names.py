"""Check of the names of encoder outputs: why two servers that should share do not."""

from __future__ import annotations

from typing import Any

from mmcached.cache.name_files import differences, known_names
from mmcached.cli.doctor.finding import CheckedHost, Finding

MAX_SHOWN = 3


def names(host: CheckedHost) -> Finding:
    """List the host programs that have named encoder outputs, and the parts in which their newest names differ."""
    by_program: dict[str, list[dict[str, Any]]] = {}
    for rows in known_names(host.run_dir).values():
        by_program.setdefault(str(rows["host"]), []).append(rows)
    if not by_program:
        return Finding("ok", "no encoder outputs were named in this run directory")
    found = [_of_program(program, names) for program, names in sorted(by_program.items())]
    return Finding("ok", "; ".join(found))


def _of_program(program: str, names: list[dict[str, Any]]) -> str:
    newest = names[0]
    text = f"{program}: {len(names)} {'name' if len(names) == 1 else 'names'}, batching: {newest['batching']}"
    if len(names) == 1:
        return text
    parts = [part for part, _, _ in differences(newest, names[1])]
    more = f" and {len(parts) - MAX_SHOWN} more parts" if len(parts) > MAX_SHOWN else ""
    return f"{text}; the newest two differ in {', '.join(parts[:MAX_SHOWN])}{more} (mmcached inspect KEY OTHER)"
