"""A forked child takes nothing away from its parent, and connects anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mmcached.client import Client
from mmcached.wire.process.death import environment_for_children
from tests.client import fork_child
from tests.client.records import numbers
from tests.client.services import StoreService
from tests.frontend.integrity import check_store
from tests.integration.processes import DEADLINE_S, eventually

CHILD = Path(fork_child.__file__)


def test_fork_leaves_the_parents_leases_alone_and_the_child_connects_anew(run_dir: Path) -> None:
    with StoreService(run_dir) as service:
        with Client(run_dir) as client:
            client.put("k", numbers(9))
        byte = int(numbers(9)["x"][0])
        with subprocess.Popen(
            [sys.executable, str(CHILD), str(run_dir)],
            env=environment_for_children(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            seen = json.loads(process.stdout.readline())
            assert seen["child"] == {"inherited": [0, 1], "byte": byte, "new_locks": 1, "after": 0}
            assert seen["parent"] == {"byte": byte, "locks": True, "get": byte}
            assert service.leases == 1, "the parent's view; the child has given nothing back, and kept nothing"
            print(file=process.stdin, flush=True)
            assert json.loads(process.stdout.readline()) == "let go"
            eventually(lambda: service.leases, lambda count: count == 0, "leases")
            print(file=process.stdin, flush=True)
            assert json.loads(process.stdout.readline()) == [[True], byte, [True]]
            assert process.wait(DEADLINE_S) == 0
        service.call(lambda: check_store(service.desk))
