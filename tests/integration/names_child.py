"""A client process that binds one name to what it fetches; run by path: `names_child.py RUN_DIR`.

ready -> (a line) -> bind; if it fetches: "fetching" -> (a line) -> the digest
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mmcached.client import Client
from mmcached.wire.process.death import arm_from_environment

FILE = b"a picture that takes long to fetch"


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def fetch() -> bytes:
    say(fetching=True)
    sys.stdin.readline()
    return FILE


def main() -> None:
    arm_from_environment()
    with Client(Path(sys.argv[1])) as client:
        say(ready=True)
        sys.stdin.readline()
        say(content=client.bind("cat", fetch, keeps_file=True))


if __name__ == "__main__":
    main()
