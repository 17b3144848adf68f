"""Reads what each role takes: resident memory and open descriptors, from /proc."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from tests.integration.processes import role_pids

MIB = 1 << 20


@dataclass
class Burden:
    """Samples of one role.

    Attributes:
        pids: the processes that had the role; more than one: it was restarted.
        rss: anonymous memory in bytes, sample by sample: shared memory is the ring's, and bounded by its size.
        fds: open descriptors, sample by sample.
    """

    pids: set[int] = field(default_factory=set)
    rss: list[int] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)

    @staticmethod
    def early_and_late(samples: list[int]) -> tuple[float, float]:
        """Return the medians of the second quarter, when caches and pools are full, and of the last."""
        quarter = max(1, len(samples) // 4)
        return statistics.median(samples[quarter : 2 * quarter] or samples), statistics.median(samples[-quarter:])


def sample(supervisor: int, burdens: dict[str, Burden]) -> None:
    """Add a sample of each role of a service to `burdens`."""
    by_role = {"supervisor": [supervisor], **role_pids(supervisor)}
    for role, pids in by_role.items():
        for rank, pid in enumerate(pids):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                num_fds = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            except (FileNotFoundError, ProcessLookupError):
                continue
            if "RssAnon:" not in status:  # it has ended, and its parent has not noticed
                continue
            burden = burdens.setdefault(f"{role} {rank}", Burden())
            burden.pids.add(pid)
            burden.rss.append(int(status.partition("RssAnon:")[2].split()[0]) * 1024)
            burden.fds.append(num_fds)
