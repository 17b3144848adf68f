"""The paged decoder against a whole recomputation in plain integers, for random chunks, batches and block layouts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.worker import RunChunk
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, END_TOKEN_ID, TOKEN_IDS, VOCABULARY_SIZE
from mmcached.worker.model import batch as batches
from mmcached.worker.model import decoder as decoders
from mmcached.worker.model.batch import check_chunk, pack
from mmcached.worker.model.decoder import CausalDecoder, pick_tokens
from mmcached.worker.model.kv_pool import KVPool
from tests.house.drawing import examples
from tests.worker.oracle import Oracle
from tests.worker.plans import chunk

CONFIG = ModelConfig(seed=5, hidden_size=8, num_heads=2, num_layers=2)
CPU = torch.device("cpu")
DECODER = CausalDecoder(CONFIG, CPU)
ORACLE = Oracle(CONFIG)
TOKENS = st.lists(st.integers(0, VOCABULARY_SIZE - 1), min_size=1, max_size=20)


def make_pool(num_blocks: int, block_size: int, device: torch.device = CPU, config: ModelConfig = CONFIG) -> KVPool:
    return KVPool(
        num_layers=config.num_layers,
        num_blocks=num_blocks,
        block_size=block_size,
        hidden_size=config.hidden_size,
        device=device,
    )


def run_step(chunks: Sequence[RunChunk], pool: KVPool, model: CausalDecoder = DECODER) -> list[np.ndarray]:
    """Hidden states of each chunk."""
    packed = pack(chunks, pool.block_size, model._device)
    hidden = model.forward(model.embed(packed.token_ids), packed, pool).cpu().numpy().astype(np.int64)
    return [hidden[start:end] for start, end in zip(packed.starts, packed.starts[1:], strict=False)]


@settings(max_examples=examples(60))
@given(st.lists(TOKENS, min_size=1, max_size=4), st.sampled_from([1, 2, 4, 5]), st.integers(0, 2**32))
def test_any_chunking_batching_and_layout_equals_one_recomputation(
    prompts: list[list[int]], block_size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    needed = [-(-len(prompt) // block_size) for prompt in prompts]
    shuffled = rng.permutation(np.arange(1, sum(needed) + 3)).tolist()
    tables = [[shuffled.pop() for _ in range(count)] for count in needed]
    pool = make_pool(sum(needed) + 3, block_size)
    done = [0] * len(prompts)
    found: list[list[np.ndarray]] = [[] for _ in prompts]
    while done != [len(prompt) for prompt in prompts]:
        chunks = []
        for index in rng.permutation(len(prompts)).tolist():
            count = int(rng.integers(0, min(7, len(prompts[index]) - done[index]), endpoint=True))
            if count:
                tokens = prompts[index][done[index] : done[index] + count]
                chunks.append(chunk(index, tokens, tables[index], computed=done[index]))
        for made, rows in zip(chunks, run_step(chunks, pool) if chunks else (), strict=True):
            done[made.request_id] += len(rows)
            found[made.request_id].append(rows)
    for prompt, pieces in zip(prompts, found, strict=True):
        assert np.array_equal(np.concatenate(pieces), ORACLE.hidden_states(prompt))


def test_tiles_and_groups_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(23))
    monkeypatch.setattr(decoders, "_TILE_ELEMENTS", 60)
    monkeypatch.setattr(batches, "_MAX_GROUP_SLOTS", 30)
    pool = make_pool(30, 4)
    tables = [[3, 9, 1, 7, 5, 2], [10, 11, 12, 13, 14, 15], [16, 17, 18]]
    run_step(
        [chunk(0, prompt[:22], tables[0]), chunk(1, prompt[1:23], tables[1]), chunk(2, prompt[:9], tables[2])], pool
    )
    step = [
        chunk(2, [prompt[9]], tables[2], computed=9),
        chunk(0, [prompt[22]], tables[0], computed=22),
        chunk(1, [50], tables[1], computed=22),
    ]
    assert len(pack(step, 4, CPU).groups) == 3
    rows = run_step(step, pool)
    assert np.array_equal(rows[0][0], ORACLE.hidden_states(prompt[:10])[-1])
    assert np.array_equal(rows[1][0], ORACLE.hidden_states(prompt)[-1])
    assert np.array_equal(rows[2][0], ORACLE.hidden_states([*prompt[1:23], 50])[-1])


def test_positions_beyond_the_prime_have_their_own_terms() -> None:
    positions = torch.tensor([0, 1, 4092, 4093, 4094, 8186, 2**24])
    place = DECODER._place.to(torch.int64)
    for position, found in zip(positions.tolist(), DECODER._position_terms(positions).to(torch.int64), strict=True):
        expected = position * place[0] + (position**2 % 4093) * place[1] + (position // 4093) * place[2]
        assert torch.equal(found, expected)


def test_every_row_depends_on_every_earlier_token_and_on_order() -> None:
    prompt = list(range(40, 60))
    before = ORACLE.hidden_states(prompt)
    for place in range(len(prompt)):
        changed = list(prompt)
        changed[place] ^= 1
        rows = run_step([chunk(0, changed, [1, 2, 3, 4, 5])], make_pool(6, 4))[0]
        assert np.array_equal(rows[:place], before[:place])
        assert (rows[place:] != before[place:]).any(axis=1).all()
    swapped = [prompt[1], prompt[0], *prompt[2:]]
    assert (run_step([chunk(0, swapped, [1, 2, 3, 4, 5])], make_pool(6, 4))[0] != before).any(axis=1).all()


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.zeros((4, VOCABULARY_SIZE), dtype=torch.float64)
    logits[1, [40, 90, END_TOKEN_ID]] = 4092
    logits[2, END_TOKEN_ID] = 1
    logits[3, [BEGIN_TOKEN_ID, *TOKEN_IDS.values()]] = 4092
    logits[3, [7, 8]] = 3
    assert pick_tokens(logits) == [0, 40, END_TOKEN_ID, 7]


def test_sampled_tokens_equal_the_oracle_and_are_not_degenerate() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.integers(0, 4093, (3000, CONFIG.hidden_size))
    tokens = DECODER.sample(torch.from_numpy(hidden).to(torch.float64))
    assert tokens[:200] == [ORACLE.next_token(row) for row in hidden[:200]]
    assert len(set(tokens)) > 200
    assert 0 < tokens.count(END_TOKEN_ID) < 60
    assert not {BEGIN_TOKEN_ID, *TOKEN_IDS.values()} & set(tokens)


def test_two_tokens_in_one_slot_are_refused() -> None:
    with pytest.raises(InvariantError, match="share a KV slot"):
        pack([chunk(0, [1, 2], [3]), chunk(1, [1], [3], computed=1)], 4, CPU)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (chunk(9, [], [1]), "empty"),
        (chunk(9, [1] * 5, [1]), "2 are needed"),
        (chunk(9, [1], [1], computed=64), "max_model_len"),
        (chunk(9, [VOCABULARY_SIZE], [1]), "vocabulary"),
        (chunk(9, [1], [0]), "block ids"),
        (chunk(9, [1], [8]), "block ids"),
    ],
)
def test_impossible_chunks_are_refused_by_name(wrong: RunChunk, word: str) -> None:
    with pytest.raises(InvariantError, match=word) as caught:
        check_chunk(wrong, num_blocks=8, block_size=4, vocabulary_size=VOCABULARY_SIZE, max_model_len=64)
    assert caught.value.details["request_id"] == 9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_same_bits() -> None:
    device = torch.device("cuda")
    model = CausalDecoder(CONFIG, device)
    pool = make_pool(12, 4, device)
    prompt = list(range(30, 50))
    rows = [run_step([chunk(0, prompt[:13], [9, 2, 5, 1, 7])], pool, model)[0]]
    rows += [run_step([chunk(0, [prompt[i]], [9, 2, 5, 1, 7], computed=i)], pool, model)[0] for i in range(13, 20)]
    assert np.array_equal(np.concatenate(rows), ORACLE.hidden_states(prompt))
