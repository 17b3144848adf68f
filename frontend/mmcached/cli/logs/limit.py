"""Limits the log lines that one peer can cause, of each kind in a window.

The next line after a gap has their number in `left_out`. A line's kind is its logger and its text before values are
filled in; its peer is the first of `PEER_FIELDS` that it has. In one window a few peers have a count of their own, and
all others share one, so that reconnecting for each bad message does not evade the limit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import structlog

WINDOW_S = 10.0
MAX_LINES = 10
"""Lines of one kind and peer in a window."""
MAX_PEERS = 16
"""Peers with a count of their own, for each kind of line and window."""
MAX_KINDS = 1024
PEER_FIELDS = ("peer", "client_id", "role_name", "engine", "rank")


@dataclass(slots=True)
class _Window:
    """Lines of one kind since `start`, by peer; "" for all peers without a count of their own."""

    start: float
    counts: dict[str, int] = field(default_factory=dict)
    num_left_out: int = 0


class LogLimit(logging.Filter):
    """A filter for lines of the standard library, whose `limit` is a processor for structlog's.

    Args:
        max_lines: Lines of one kind and peer in a window.
    """

    def __init__(self, max_lines: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._max_lines = max_lines
        self._clock = clock
        self._windows: dict[tuple[str, str], _Window] = {}

    def count_line(self, kind: tuple[str, str], fields: Mapping[str, Any]) -> int | None:
        """Count a line. Return how many of its kind were left out in the last window, or None to leave this one out."""
        now = self._clock()
        window = self._windows.get(kind)
        num_left_out = 0
        if window is None or now >= window.start + WINDOW_S:
            num_left_out = 0 if window is None else window.num_left_out
            if len(self._windows) >= MAX_KINDS:
                self._windows.clear()
            window = self._windows[kind] = _Window(now)
        peer = str(next((fields[name] for name in PEER_FIELDS if name in fields), ""))
        if peer not in window.counts and len(window.counts) >= MAX_PEERS:
            peer = ""
        window.counts[peer] = window.counts.get(peer, 0) + 1
        if window.counts[peer] > self._max_lines:
            window.num_left_out += 1
            return None
        return num_left_out

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, dict):
            return True  # structlog's, which `limit` has handled
        num_left_out = self.count_line((record.name, str(record.msg)), vars(record))
        if num_left_out:
            record.left_out = num_left_out
        return num_left_out is not None

    def limit(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Pass a line of structlog on, or raise `DropEvent`."""
        num_left_out = self.count_line((str(getattr(logger, "name", "")), str(event.get("event"))), event)
        if num_left_out is None:
            raise structlog.DropEvent
        if num_left_out:
            event["left_out"] = num_left_out
        return event
