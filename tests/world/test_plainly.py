"""The fast truth is the slow one."""

from __future__ import annotations

import numpy as np

from mmcached.wire.config import ModelConfig
from tests.worker.oracle import Oracle, random_image
from tests.world.plainly import PlainModel, plain_model

MODEL = ModelConfig(seed=3, hidden_size=8, num_heads=2, encoder_width=8, patch_size=2, num_layer_outputs=2)


def test_rows_and_tokens_are_those_of_the_oracle() -> None:
    oracle, plain = Oracle(MODEL), PlainModel(MODEL)
    image = random_image(np.random.default_rng(1), (1, 3), MODEL.patch_size)
    embeddings = oracle.encode(image)
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
