"""Ranks encode together, so what one of them cannot load none of them loads; shown with two processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcached.client import Client
from tests.client.services import StoreService

CHILD = Path(__file__).with_name("rank_child.py")
DEADLINE_S = 60.0


@pytest.mark.parametrize("sees", [True, False])
def test_ranks_agree(store: StoreService, run_dir: Path, tmp_path: Path, sees: bool) -> None:
    with Client(run_dir) as client:
        client.put("key 0", {"embeds": torch.ones(4, 3)})
        client.put("key 1", {"embeds": torch.ones(5, 3)})  # other rows than the request expects
        hits = client.get_many(["key 0", "key 1"], view=True)
        tokens = [hit.token for hit in hits if hit is not None and hit.token is not None]
        places = [run_dir, run_dir if sees else tmp_path / "nobody"]
        meeting = tmp_path / "meeting"
        words = [[str(rank), str(meeting), str(place), *tokens] for rank, place in enumerate(places)]
        children = [
            subprocess.Popen([sys.executable, str(CHILD), *each], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for each in words
        ]
        answers: list[dict[str, Any]] = []
        for child in children:
            said, errors = child.communicate(timeout=DEADLINE_S)
            assert child.returncode == 0, errors.decode()
            answers.append(json.loads(said))
        del hits
    wanted = {"loaded": ["0"], "encoded": [1]} if sees else {"loaded": [], "encoded": [0, 1]}
    assert answers == [wanted, wanted]
