"""The fast truth is the slow one."""

from __future__ import annotations

import numpy as np
import pytest

from mmcached.wire.model_config import ModelConfig
from tests.worker.oracle import Item, Oracle, random_image, random_sound, random_video
from tests.world.plainly import PlainModel, embeddings_of, plain_model

MODEL = ModelConfig(
    seed=3, hidden_size=8, num_heads=2, encoder_width=8, patch_size=2, audio_frame=3, num_layer_outputs=2
)
_RNG = np.random.default_rng(1)


@pytest.mark.parametrize(
    "item", [random_image(_RNG, (1, 3), 2), random_video(_RNG, (3, 1), 2), random_sound(_RNG, 3, 3)]
)
def test_rows_and_tokens_are_those_of_the_oracle(item: Item) -> None:
    oracle, plain = Oracle(MODEL), PlainModel(MODEL)
    embeddings = oracle.encode(item)
    assert np.array_equal(embeddings_of(plain, item), embeddings)
    tokens = [256, 4, 258, 258, 258, 7, 7, 9]
    replaced = {2 + index: row for index, row in enumerate(embeddings)}
    output, hidden_states = oracle.reference_generate(tokens, replaced, 3)
    rows = plain.rows([*tokens, *output[:-1]], replaced)
    assert np.array_equal(rows["hidden_states"], hidden_states)
    assert np.array_equal(rows["hidden_states.layer_1"], hidden_states)
    assert not np.array_equal(rows["hidden_states.layer_0"], hidden_states)
    assert plain.next_tokens(rows["hidden_states"][len(tokens) - 1 :]) == output


def test_each_epoch_has_weights_of_its_own() -> None:
    first, second = plain_model(MODEL, 0), plain_model(MODEL, 1)
    assert not np.array_equal(first.hidden_states([1, 2]), second.hidden_states([1, 2]))
