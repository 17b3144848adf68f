"""The commands `keys` and `inspect`, which print a store's records.

Exit status of `inspect`: 0 found, 1 not found, 3 no store in that directory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mmcached.cli.admin.printing import (
    JsonOption,
    RunDirOption,
    directory_of,
    print_json,
    print_table,
    say,
)
from mmcached.cli.exit_status import NEGATIVE, NO_SERVICE, OK
from mmcached.cli.progress import working
from mmcached.cli.terminal_text import shown
from mmcached.wire.errors import InvalidRequest, ServiceUnavailable

if TYPE_CHECKING:
    from mmcached.cli.admin.records import FoundRecord, Reader, StoreOnlooker


def register(app: typer.Typer) -> None:
    app.command()(keys)
    app.command()(inspect)


def keys(
    match: Annotated[str, typer.Option("--match", metavar="GLOB", help="Only keys that match: * ? [abc].")] = "*",
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only records of this tenant.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Records to list at most.")] = 100,
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the store's records. Shows key, tenant, size, age, time to live and readers, the last put first. Works
    also while no frontend answers.
    """
    with _look(run_dir) as store, working("looking into the store"):
        found = store.list_keys(match, tenant, limit)
    if as_json:
        print_json(found)
        return
    rows = [
        [str(k.age), k.key, k.tenant, f"{k.nbytes:,}", _time(k.age_s), _time(k.ttl_s), _readers(k.readers)]
        for k in found.keys
    ]
    if rows:
        print_table(rows, "#", "key", "tenant", "bytes", "age", "expires in", "leased by")
    more = f"; the {limit} last put of those that match are shown (--limit)" if found.is_cut else ""
    say(f"{len(rows)} of {found.num_records} records{more}")


def inspect(
    key: Annotated[str, typer.Argument(help="The record's key.")],
    other: Annotated[
        str | None, typer.Argument(help="Another key: show in which parts the names of both differ.")
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help="The record's tenant.")] = "",
    run_dir: RunDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one record. Prints its tensors, its expiry, its readers, and what an encoder output's name is made of.
    Exit status 0: there, 1: not.
    """
    _require_text(key=key, tenant=tenant, other=other or "")
    with _look(run_dir) as store:
        found = store.inspect(key, tenant)
        compared = None if other is None else store.inspect(other, tenant)
    if as_json:
        print_json(found if compared is None else [found, compared])
    else:
        _show(found)
        _show_name(found, compared)
    raise typer.Exit(OK if found.state == "valid" else NEGATIVE)


def _show(found: FoundRecord) -> None:
    whose = f" of tenant {shown(found.tenant)}" if found.tenant else ""
    if found.slot is None:
        say(f"{shown(found.key)}{whose}: not there")
        return
    states = {"valid": "there", "expired": "not there: its time to live is over"}
    state = states.get(found.state, f"dropped, and {found.state} for its readers")
    say(f"{shown(found.key)}{whose}: {state}")
    expiry = f", expires in {_time(found.ttl_s)}" if found.ttl_s is not None and found.state == "valid" else ""
    say(f"{found.nbytes:,} bytes in slot {found.slot}, generation {found.generation}{expiry}")
    rows = [[t.path, t.dtype, "x".join(map(str, t.shape)), f"{t.nbytes:,}"] for t in found.tensors]
    if rows:
        print_table(rows, "tensor", "dtype", "shape", "bytes")
    say(f"{found.num_values} values that are not tensors")
    say(f"leased by {_readers(found.readers) or 'nobody'}")


def _show_name(found: FoundRecord, compared: FoundRecord | None) -> None:
    """Print the rows of a name, or the parts in which two names differ."""
    from mmcached.cache.name_files import differences

    if compared is None:
        if found.rows is not None:
            print_table([[row, _value(value)] for row, value in found.rows.items()], "what decides its bits", "")
        return
    for each in (found, compared):
        if each.rows is None:
            say(f"{shown(each.key)}: no encoder output whose name is known in this run directory")
    if found.rows is not None and compared.rows is not None:
        rows = [[part, _value(one), _value(its)] for part, one, its in differences(found.rows, compared.rows)]
        if rows:
            print_table(rows, "differs in", shown(found.key), shown(compared.key))
        else:
            say("both have the same name: other items, or items processed in another way")


def _value(value: Any) -> str:
    """Return a JSON value in one line, cut to what a terminal shows.

    >>> _value({"torch": "2.13"}), _value(None)
    ('{"torch": "2.13"}', 'cannot differ')
    """
    text = "cannot differ" if value is None else value if isinstance(value, str) else json.dumps(value)
    return shown(text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]} … (--json shows all)")


def _time(seconds: float | None) -> str:
    """Return seconds in the largest unit that fits; "" for None.

    >>> [_time(seconds) for seconds in (None, 0.4, 59.9, 60, 7300, 200_000)]
    ['', '0 s', '59 s', '1 min', '2 h', '2 d']
    """
    if seconds is None:
        return ""
    unit, size = next((each for each in _UNITS if seconds >= each[1]), ("s", 1))
    return f"{int(seconds // size)} {unit}"


_MAX_VALUE = 160
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60))


def _readers(readers: list[Reader]) -> str:
    return ", ".join(f"{r.name or '?'} (pid {r.pid}{f', {r.leases} leases' if r.leases > 1 else ''})" for r in readers)


def _require_text(**names: str) -> None:
    """Refuse keys that are not UTF-8, which no record can have."""
    for field, name in names.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidRequest(field, shown(name), "must be UTF-8") from None


@contextmanager
def _look(run_dir: Path | None) -> Iterator[StoreOnlooker]:
    from mmcached.cli.admin.records import StoreOnlooker

    path = directory_of(run_dir)
    try:
        store = StoreOnlooker(path)
    except (FileNotFoundError, ServiceUnavailable):
        say(f"no store in {path}; start one: mmcached serve --run-dir {path}", err=True)
        raise typer.Exit(NO_SERVICE) from None
    with store:
        yield store
