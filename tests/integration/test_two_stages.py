"""Two models in a row: what the second says depends on every hidden state of the first, and no cache shows in it.

    photographs, text --> service 1 --rows--> codes, one token per row --> service 2 --> tokens

Conversations go on turn by turn, so prefixes are hit in both; of a prefix that is hit in the first, the rows come from
its store.
"""

from __future__ import annotations

import torch

from mmcached.cli.demo.run import all_caches_off
from mmcached.client import Client, RowsWanted
from mmcached.wire.config import ServiceConfig
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.stats import ServiceStats
from tests.integration.local_service import scratch_service
from tests.integration.processes import small_config
from tests.integration.workloads import photo

NUM_TURNS = 4
TALKER = ModelConfig(seed=77, hidden_size=16, num_heads=2)


def codes_of(rows: torch.Tensor) -> list[int]:
    """Return a byte per row that every number of the row has a part in."""
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.int64)
    codes: list[int] = ((rows.to(torch.int64) * weights).sum(dim=1) % 251).tolist()
    return codes


def converse(thinker: Client, talker: Client) -> list[list[int]]:
    """Have two conversations about the same photographs, and return what the second stage says at each turn."""
    said = []
    for opening in ("Look: <image> and <image>. ", "Look: <image> and <image>! "):
        text, codes = opening, list[int]()
        for turn in range(NUM_TURNS):
            text += f"Turn {turn}, and what then? " + "so " * 12
            # The codes of the rows before are at hand: the first turn brings all rows, a later one those behind them.
            wanted = RowsWanted(first=len(codes), delivery="delta") if turn % 2 else True
            thought = thinker.generate(text, [photo(0), photo(1)], 6, hidden_states=wanted)
            assert thought.hidden_states is not None
            codes = [*(codes if turn % 2 else ()), *codes_of(thought.hidden_states)]
            assert len(codes) == thought.num_prompt_tokens + 5
            said.append(talker.generate(codes, max_tokens=8).tokens)
            codes = codes[: thought.num_prompt_tokens]  # its answer is not part of the next prompt
    return said


def play(first: ServiceConfig, second: ServiceConfig) -> tuple[list[list[int]], ServiceStats, ServiceStats]:
    with scratch_service(first) as (_, thinker), scratch_service(second) as (_, talker):
        said = converse(thinker, talker)
        return said, thinker.stats(), talker.stats()


def test_the_second_stage_says_the_same_with_caches_on_and_off() -> None:
    first = small_config(max_model_len=512, num_kv_blocks=128, max_num_batched_tokens=64)
    second = small_config(max_model_len=512, num_kv_blocks=128, model=TALKER, world_size=1)
    wanted, _, _ = play(all_caches_off(first), all_caches_off(second))
    said, thinker, talker = play(first, second)
    assert said == wanted
    assert len({tuple(tokens) for tokens in said}) == len(said), "what is said depends on what was thought"
    assert thinker.engines[0].workers[0].prefix_row_hits > 0
    assert talker.engines[0].kv.hits > 0
