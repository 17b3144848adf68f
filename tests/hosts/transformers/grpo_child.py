"""Runs examples/grpo.py, and waits for a line after each update: `grpo_child.py RUN_DIR CHECKPOINT PICTURE…`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

from examples import grpo

NUM_UPDATES = 4


def main() -> None:
    run_dir, checkpoint, *pictures = map(Path, sys.argv[1:])
    for update in grpo.updates(checkpoint, pictures, run_dir, NUM_UPDATES):
        print(json.dumps(asdict(update)), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
