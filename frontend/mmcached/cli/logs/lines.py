"""Formats every log line of a process in one way, from structlog and from the standard library.

    structlog.get_logger()       ─┐   withhold user data     ┌─ console, on a terminal
    logging.getLogger("…")       ─┴─► shorten keys  ─────────┴─ one JSON object per line, otherwise     ─► stderr

Fields: `ts` (UTC), `level`, `role`, `pid`, `event`, `request_id` where there is one, then the rest.

Fields that hold user data (`USER_DATA_FIELDS`) are dropped, and `withheld` names them; bytes and tensors become their
size or type; keys (`KEY_FIELDS`, any 64 hex digits in a text) are cut to 12 digits, enough to follow an item. A
traceback shows no variables. Other text is not analysed: do not put user data into it. Nothing is raised: a log line
must not end a request.

Roles may use either logger; only the process's `main` calls `set_up_logging`. Packages that a host program imports
(wire, shm, cache, client) use only `logging.getLogger`, because structlog without a set-up prints to stdout.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TextIO

# structlog would import rich if it is installed, for unwanted tracebacks: a fifth of a role's start.
_is_rich_hidden = sys.modules.setdefault("rich", None) is None  # type: ignore[arg-type]
import structlog

if _is_rich_hidden:
    del sys.modules["rich"]

from mmcached.cli.logs.limit import LogLimit
from mmcached.cli.terminal_text import shown_lines
from mmcached.wire.config import ServiceConfig

KEY_DIGITS = 12
KEY_FIELDS = frozenset({"key", "keys", "mm_hash", "mm_hashes", "block_hash", "identifier", "client_id"})
USER_DATA_FIELDS = frozenset(
    {"prompt", "text", "image", "images", "pixels", "data", "payload", "tokens", "token_ids", "embeddings"}
    | {"hidden_states", "tensor", "tensors"}
)
_FIRST_FIELDS = ("ts", "level", "role", "pid", "event", "request_id")
_LONG_KEY = re.compile(rf"\b([0-9a-f]{{{KEY_DIGITS}}})[0-9a-f]{{52}}\b")

Event = MutableMapping[str, Any]


def set_up_logging(role: str, config: ServiceConfig, *, stream: TextIO | None = None) -> None:
    """Set up this process's logging. A later call replaces an earlier one.

    Args:
        stream: stderr by default; decides `log_format = "auto"` by whether it is a terminal.
    """
    stream = stream or sys.stderr
    limit = LogLimit(config.limits.log_lines_per_peer)
    is_console = config.log_format == "console" or (config.log_format == "auto" and stream.isatty())
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        _Speaker(role),
        withhold_user_data,
    ]
    handler = logging.StreamHandler(stream)
    handler.addFilter(limit)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(is_console, stream)],
        )
    )
    # Only our handler: two would print every line twice.
    root = logging.getLogger()
    for former in list(root.handlers):
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(config.log_level.upper())
    logging.captureWarnings(True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            limit.limit,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.processors.StackInfoRenderer(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # a logger made at import, before the set-up, must use the new configuration
    )


def withhold_user_data(logger: object, method: str, event: Event) -> Event:
    """Drop fields that hold user data, also in nested mappings; `withheld` lists them."""
    withheld: set[str] = set()
    kept = _without_user_data(event, withheld)
    if withheld:
        kept["withheld"] = sorted(withheld)
    return kept


def shorten_keys(logger: object, method: str, event: Event) -> Event:
    """Cut keys to their first digits, in key fields and in every text; show only the size of bytes and tensors."""
    return {field: _shown(field, value) for field, value in event.items()}


def _without_user_data(fields: Mapping[str, Any], withheld: set[str]) -> dict[str, Any]:
    kept = {}
    for field, value in fields.items():
        if field in USER_DATA_FIELDS:
            withheld.add(field)
        else:
            kept[field] = _without_user_data(value, withheld) if isinstance(value, Mapping) else value
    return kept


def _shown(field: str, value: Any) -> Any:
    is_key = field in KEY_FIELDS
    match value:
        case str():
            return value[:KEY_DIGITS] if is_key else _LONG_KEY.sub(r"\1…", value)
        case bytes() if is_key:
            return value.hex()[:KEY_DIGITS]
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case Mapping():
            return {name: _shown(name, item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_shown(field, item) for item in value]
        case _ if hasattr(value, "dtype"):
            return f"<{type(value).__name__}>"
        case _:
            return value


class _Speaker:
    """Adds role and pid; the pid is read for each line because a set-up may outlive a fork."""

    def __init__(self, role: str) -> None:
        self._role = role

    def __call__(self, logger: object, method: str, event: Event) -> Event:
        event.setdefault("role", self._role)
        event["pid"] = os.getpid()
        return event


def _renderers(is_console: bool, stream: TextIO) -> list[Any]:
    # Tracebacks become text here, before keys are cut; a console renderer with rich would show the variables of every
    # frame.
    to_text = [structlog.processors.format_exc_info, shorten_keys]
    if is_console:
        plain = structlog.dev.plain_traceback
        console = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain, timestamp_key="ts")
        return [*to_text, _escape, console]
    return [*to_text, _in_order, structlog.processors.JSONRenderer()]


def _escape(logger: object, method: str, event: Event) -> Event:
    """Escape terminal commands, but not line ends, which tracebacks have."""
    return {field: shown_lines(value) if isinstance(value, str) else value for field, value in event.items()}


def _in_order(logger: object, method: str, event: Event) -> Mapping[str, Any]:
    first = {field: event.pop(field) for field in _FIRST_FIELDS if field in event}
    return {**first, **event}
