"""A client that dies in the middle of a large put: `python -m tests.frontend.egress_child RUN_DIR`.

It puts `whole`, and says `half way` when half of `half` lies in its ring; then it waits to be killed.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from mmcached.client import Client
from mmcached.shm import EncodedRecord


def main() -> None:
    record = {"x": np.ones(400_000, np.uint8), "y": np.ones(400_000, np.uint8)}
    with Client(Path(sys.argv[1]), fail_open=False) as client:
        assert client.put("whole", record)

        def write_half(self: EncodedRecord, buffer: Any) -> None:
            buffer[: len(buffer) // 2] = 1
            sys.stdout.write("half way\n")
            sys.stdout.flush()
            signal.pause()

        EncodedRecord.write_into = write_half  # type: ignore[method-assign]
        client.put("half", record)


if __name__ == "__main__":
    main()
