"""One rank of two, run by path: `rank_child.py RANK MEETING RUN_DIR TOKEN`; prints, as JSON, what it loads and encodes.

RUN_DIR is where this rank finds the store, or nobody.
"""

from __future__ import annotations

import json
import sys
from functools import partial

import torch

from mmcached.client import Client
from mmcached.client.device.devices import Host
from mmcached.integrations.ranks import failed_in_any
from mmcached.integrations.vllm.messages import Load, StepOrders
from mmcached.integrations.vllm.worker_side import WorkerSide


def main(rank: str, meeting: str, run_dir: str, *tokens: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    worker = WorkerSide(
        Client(run_dir, connect_timeout_s=0.2),
        Host(),
        torch.float32,
        max_waiting_bytes=0,
        agree=partial(failed_in_any, group=torch.distributed.group.WORLD),
        is_written=lambda: False,
        is_encode_only=False,
        call_timeout_s=5.0,
    )
    loads = [
        Load(str(number), f"key {number}", token, num_rows=4, width=3, request_id="r", item=number)
        for number, token in enumerate(tokens)
    ]
    plan, cache = StepOrders(0, loads), dict[str, torch.Tensor]()
    worker.load(plan, cache)
    worker.close()
    torch.distributed.destroy_process_group()
    sys.stdout.write(json.dumps({"loaded": sorted(cache), "encoded": plan.scheduled.get("r", [])}))


if __name__ == "__main__":
    main(*sys.argv[1:])
