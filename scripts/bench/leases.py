"""A lease that a benchmark takes on a chunk of a ring."""

from __future__ import annotations

from dataclasses import dataclass

from mmcached.wire.handle import Handle


@dataclass(slots=True)
class Lease:
    """See `mmcached.shm.ring.self_lease.SelfLease`."""

    handle: Handle
    is_counted: bool = False
    num_returned: int = 0
