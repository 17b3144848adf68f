"""Check of nurseries, the shared-memory files into which clients write large records."""

from __future__ import annotations

import os
import re

from mmcached.cli.admin.shm_list import list_segments
from mmcached.cli.doctor.finding import CheckedHost, Finding, mib
from mmcached.cli.doctor.memory import grow
from mmcached.shm.segment.headroom import memory_headroom
from mmcached.wire.config import MIN_NURSERY_BYTES
from mmcached.wire.limits import RESERVED_DESCRIPTORS

_INLINE = "large puts go through the socket, and the service copies them"


def nurseries(host: CheckedHost) -> Finding:
    """Check whether clients get nurseries; without one a client's large records travel as messages."""
    config, budget = host.config, host.config.store_nursery_bytes
    if not config.store_data_bytes:
        return Finding("ok", "the service has no store (store_gb = 0)")
    if not config.store_nursery_share:
        return Finding("ok", f"there are none (store_nursery_share = 0): {_INLINE}")
    if not budget:
        share = mib(int(config.store_data_bytes * config.store_nursery_share))
        fact = f"there are none: their share of the store is {share}, and less than {mib(MIN_NURSERY_BYTES)}"
        return Finding("warning", f"{fact}: {_INLINE}", "a larger store_gb or store_nursery_share")
    home, most = str(host.run_dir.absolute()), config.limits.max_nurseries
    of_service = [entry for entry in list_segments() if entry.is_live and entry.run_dir == home]
    if not of_service:
        return Finding("ok", f"no service in {home}; at most {most}, {mib(budget)} together")
    sizes = [entry.nbytes for entry in of_service if entry.purpose == "nursery"]
    fact = f"{len(sizes)} of at most {most}, {mib(sum(sizes))} of {mib(budget)}"
    if len(sizes) >= most:
        fact = f"{fact}: one more is opened only in place of one whose client is gone, else {_INLINE}"
        return Finding("warning", fact, "raise limits.max_nurseries, and the limit of open files with it")
    if not _has_descriptor(host, of_service[0].pid):
        fix = "raise the frontend's limit of open files: LimitNOFILE=, ulimit -Hn, docker run --ulimit nofile="
        return Finding("warning", f"{fact}; the frontend has no descriptor for one more: {_INLINE}", fix)
    free = _free_bytes(host)
    if free < budget - sum(sizes):
        fact = f"{fact}, of which /dev/shm and memory have room for {mib(free)} more; beyond that {_INLINE}"
        return Finding("warning", fact, grow(host))
    return Finding("ok", fact)


def _has_descriptor(host: CheckedHost, pid: int | None) -> bool:
    """Return whether the frontend may open one more descriptor; True if that is not visible from here."""
    limit = re.search(r"^Max open files +(\d+)", host.read(f"proc/{pid}/limits"), re.MULTILINE)
    try:
        num_open = len(os.listdir(host.root / f"proc/{pid}/fd"))
    except OSError:
        return True
    return limit is None or num_open < int(limit[1]) - RESERVED_DESCRIPTORS


def _free_bytes(host: CheckedHost) -> int:
    found = os.statvfs(host.shm)
    free, left = found.f_bavail * found.f_frsize, memory_headroom(host.root)
    return free if left is None else min(free, left)
