"""The exit statuses of the command line; the same table is in docs/operations.md.

Imports nothing at the top: `mmcached.cli` needs a status before slow imports.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmcached.wire.errors import MmcachedError

OK = 0
NEGATIVE = 1
"""A negative result: not ready, a problem was found, the record is missing, or the work failed."""
USAGE = 2
"""A wrong option, setting or value: a retry fails too. The status that click uses."""
NO_SERVICE = 3
"""No service in the run directory, or this user cannot use the directory."""
INTERRUPTED = 128 + signal.SIGINT
"""Ctrl-C, as a shell reports it."""


def status_of(error: MmcachedError) -> int:
    from mmcached.wire.errors import InvalidRequest, PeerGone, ServiceUnavailable

    if isinstance(error, ServiceUnavailable | PeerGone):
        return NO_SERVICE
    if isinstance(error, InvalidRequest):
        return NO_SERVICE if error.details["field"] == "run_dir" else USAGE
    return NEGATIVE
