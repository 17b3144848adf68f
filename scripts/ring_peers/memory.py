"""What a process's memory says about copies: whether bytes lie in private pages, and how much of those there is.

Read from the kernel's own tables in /proc, so that no transport can claim to be zero-copy and be believed.
"""

from __future__ import annotations

from pathlib import Path

_KIB = 1024


def private_bytes(address: int, nbytes: int) -> int:
    """Return how many of the bytes at an address lie in mappings that no other process can share."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, permissions, *_ = line.split(maxsplit=2)
        begin, end = (int(bound, 16) for bound in bounds.split("-"))
        if permissions.endswith("p"):
            total += max(0, min(end, address + nbytes) - max(begin, address))
    return total


def anonymous_bytes() -> int:
    """Return the size of this process's resident private memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * _KIB
    raise RuntimeError("/proc/self/status has no RssAnon")
