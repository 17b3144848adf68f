"""A client that dies in the middle of a large put: `python -m tests.frontend.egress_child RUN_DIR WHEN`.

It puts `whole`, and says `half way` in the middle of `half`: its ring is "made", or "filled" by half; then it waits to
be killed.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from mmcached.client.store.egress import EgressRing

from mmcached.client import Client
from mmcached.shm import EncodedRecord


def main() -> None:
    record = {"x": np.ones(400_000, np.uint8), "y": np.ones(400_000, np.uint8)}
    run_dir, when = sys.argv[1:]
    with Client(Path(run_dir), fail_open=False) as client:
        assert client.put("whole", record if when == "filled" else {})

        def fill_half(self: EncodedRecord, buffer: Any) -> None:
            buffer[: len(buffer) // 2] = 1
            wait()

        make = EgressRing.__init__

        def make_and_wait(self: EgressRing, *values: Any) -> None:
            make(self, *values)
            wait()

        EncodedRecord.write_into = fill_half  # type: ignore[method-assign]
        EgressRing.__init__ = make_and_wait  # type: ignore[assignment, method-assign]
        client.put("half", record)


def wait() -> None:
    sys.stdout.write("half way\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
