"""Ranks encode together, so what one of them cannot load none of them loads; shown with two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from mmcached.client import Client
from tests.client.services import StoreService
from tests.present import present

CHILD = Path(__file__).with_name("rank_child.py")
DEADLINE_S = 60.0


def test_what_one_rank_cannot_see_all_encode(store: StoreService, run_dir: Path, tmp_path: Path) -> None:
    with Client(run_dir) as client:
        client.put("key 0", {"embeds": torch.ones(4, 3)})
        hit = present(client.get("key 0", view=True))
        assert hit.token is not None
        places = [run_dir, tmp_path / "nobody"]
        meeting = tmp_path / "meeting"
        words = [[str(rank), str(meeting), str(place), hit.token] for rank, place in enumerate(places)]
        children = [
            subprocess.Popen(
                [sys.executable, str(CHILD), *each],
                env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for each in words
        ]
        answers: list[dict[str, Any]] = []
        for child in children:
            said, errors = child.communicate(timeout=DEADLINE_S)
            assert child.returncode == 0, errors.decode()
            answers.append(json.loads(said))
        del hit
    assert answers == [{"loaded": [], "encoded": [0]}] * 2
