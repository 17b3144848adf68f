from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from mmcached.cli.watch.service_status import process_state

_POLL_S = 0.05


def open_pidfd(pid: int) -> int:
    """Return a descriptor that is readable at the end of a process, or -1; ProcessLookupError without a process."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:  # ENOSYS, EPERM: an old kernel or seccomp profile; EMFILE
        return -1


def terminate(pid: int, pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if pidfd >= 0:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        else:
            os.kill(pid, signal.SIGTERM)


def has_ended(pid: int, pidfd: int, timeout_s: float) -> bool:
    if pidfd >= 0:
        return bool(select.select([pidfd], [], [], timeout_s)[0])
    give_up = time.monotonic() + timeout_s
    while process_state(pid) not in (None, "Z", "X"):
        if time.monotonic() >= give_up:
            return False
        time.sleep(_POLL_S)
    return True
