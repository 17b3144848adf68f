"""One rank of an engine with two: takes part in SGLang's own broadcast of requests, over gloo.

python -m tests.hosts.sglang.gloo_rank FILE      rank 1: prints the digest of the request's only item
"""

from __future__ import annotations

import datetime
import hashlib
import sys
from typing import Any

import torch.distributed as dist
from sglang.srt.utils import broadcast_pyobj

DEADLINE_S = 300.0


def broadcast(rank: int, file: str, requests: list[Any]) -> list[Any]:
    """Return what a rank receives of the requests of rank 0; the ranks meet in a file."""
    deadline = datetime.timedelta(seconds=DEADLINE_S)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=deadline)
    try:
        received: list[Any] = broadcast_pyobj(requests, rank, dist.group.WORLD)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return received


def digest_of(output: Any) -> str:
    (item,) = output.mm_items
    named = str((item.hash, list(output.input_ids), output.mrope_positions.tolist()))
    return hashlib.sha256(item.feature.numpy().tobytes() + named.encode()).hexdigest()


if __name__ == "__main__":
    (received,) = broadcast(1, sys.argv[1], [])
    received.mm_items[0].feature += 0  # memory of its own, that may be written
    print(digest_of(received))
