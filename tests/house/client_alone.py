"""Uses the store and the encoder as a program does that has nothing but `pip install mmcached`: no torch.

python client_alone.py RUN_DIR     `RUN_DIR` has a record "bf16" with a bfloat16 tensor; prints what it found as JSON
"""

import importlib.util
import json
import sys
from typing import Any

import numpy as np

from mmcached.client import Client, InvalidRequest


def refused(call: Any) -> str:
    """Return what a call says that must be refused."""
    try:
        call()
    except InvalidRequest as error:
        return str(error)
    return "not refused"


def main(run_dir: str, *options: str) -> None:
    with Client(run_dir, fail_open=False) as client:
        client.put("mine", {"x": np.arange(3, dtype=np.float16), "n": 7})
        found, view = client.get("mine"), client.get("mine", view=True)
        assert found is not None
        assert view is not None
        raw = client.get("bf16", tensors="bytes")
        assert raw is not None
        (encoded,) = [np.empty(0)] if options else client.encode([b"\1\0\0\0\2\0\0\0"])
        report = {
            "session": type(client._calls.contact._sessions.present).__name__,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "torch": importlib.util.find_spec("torch") is not None,
            "types": [type(tensor).__module__ for tensor in (found.record["x"], view.record["x"], encoded)],
            "values": [found.record["x"].tolist(), view.record["x"].tolist(), encoded.tolist(), found.record["n"]],
            "bf16": refused(lambda: client.get("bf16")),
            "bytes": raw.record["x"].tolist(),
            "wants torch": refused(lambda: client.get("no such key", tensors="torch")),
        }
        del view
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
