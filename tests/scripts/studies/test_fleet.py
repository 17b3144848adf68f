"""Several engines play a trace: what each policy finds, on conversations made for the test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scripts.studies.traces import BLOCK_TOKENS, Prompt
from tests.house import REPOSITORY

NUM_CONVERSATIONS, NUM_TURNS, NUM_ENGINES = 9, 6, 4
PAUSE_S = 10.0


def conversations() -> list[Prompt]:
    """Return prompts that arrive one by one: of each conversation in turn the next, two blocks longer than the last."""
    prompts = []
    for turn in range(NUM_TURNS):
        for number in range(NUM_CONVERSATIONS):
            block_ids = [number * 1000 + position for position in range(2 * turn + 3)]
            arrival_s = PAUSE_S * (turn * NUM_CONVERSATIONS + number)
            prompts.append(Prompt(block_ids, len(block_ids), arrival_s=arrival_s))
    return prompts


def test_the_script_says_what_cache_aware_routing_gains(tmp_path: Path) -> None:
    lines = (
        {"timestamp": 1000 * each.arrival_s, "input_length": each.num_full * BLOCK_TOKENS, "hash_ids": each.block_ids}
        for each in conversations()
    )
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-m", "scripts.studies.fleet", str(trace), "--json", "--sizes", "500"]
    printed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    (row,) = (row for row in json.loads(printed) if row["peer"] == "round_robin" and row["unit"] == "%")
    assert (row["name"], row["params"]) == ("KV hit rate, cache_aware", "4 engines, 500 blocks each")
    assert row["ratio"] == row["ours"] / row["peer_value"] > 1.4
