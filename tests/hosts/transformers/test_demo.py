"""`mmcached demo --model DIR`, as its users run it: hits in all caches, two kills, and the same bits without caches."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.transformers import checkpoints
from tests.hosts.transformers.checkpoints import PICTURES
from tests.hosts.transformers.language_models import save, write_tokenizer
from tests.integration.test_demo import words

DEADLINE_S = 900


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mmcached", "demo", "--device", "cpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.timeout(DEADLINE_S + 60)
def test_the_proof_holds_with_a_checkpoint_two_engines_and_kills(tmp_path: Path) -> None:
    folder = checkpoints.save("llava", tmp_path / "checkpoint")
    write_tokenizer(folder)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(PICTURES[0])
    small = ["--images", str(tmp_path / "photos"), "--users", "2", "--turns", "2"]
    ended = demo("--model", str(folder), *small)  # the tower takes no time
    assert ended.returncode == 0, ended.stdout + ended.stderr
    said = words(ended.stdout)
    assert said.startswith("3 photographs; 2 users, 6 requests; 2 engines, 1 worker each")
    assert "encoded once: 3 photographs" in said, said
    assert "bit-identical before the kills, after them, and with all caches off" in said
    assert "after the kills: 0 items encoded" in said, said
    assert "frontend dead: 3 of 3 records found" in said, said
    rates = dict(re.findall(r"(processor|encoder|KV prefix|hidden states) (\d+)%", said))
    assert all(int(rate) > 0 for rate in rates.values()), rates


@pytest.mark.parametrize(("family", "reason"), [("llama", "takes text alone"), ("llava", "tokenizer.json")])
def test_what_cannot_be_played_is_one_line_and_status_2(family: str, reason: str, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    if family == "llava":
        checkpoints.save(family, folder)
    else:
        save(family, folder)
    ended = demo("--model", str(folder))
    assert ended.returncode == 2
    assert reason in ended.stderr
    assert ended.stderr.count("\n") == 1
