"""Begins epochs for tests of a backend alone, which knows of no host's own epoch."""

from __future__ import annotations

import time

from mmcached.second_level.backend import MAX_EPOCH, Backend, next_epoch

LONG_S = 30.0


def begin_epoch(backend: Backend) -> int:
    """Set another epoch, whatever the server has; return it."""
    epoch = next_epoch(0)
    backend.raise_epoch(epoch, over=MAX_EPOCH, deadline=time.monotonic() + LONG_S)
    return epoch
