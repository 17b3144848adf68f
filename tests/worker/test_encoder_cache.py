"""The encoder cache: owned copies, exact bytes, harmless repeats, a typed error for what is not there."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mmcached.wire.errors import InvariantError
from mmcached.worker import EncoderCache
from tests.house.drawing import examples
from tests.worker.integrity import check_encoder_cache


def test_keeps_a_copy_and_not_the_batch_it_was_cut_from() -> None:
    cache = EncoderCache()
    batch = torch.arange(4000, dtype=torch.int32).view(1000, 4)
    cache.put("a", {"embeddings": batch[10:12]})
    batch.zero_()
    kept = cache.get("a")["embeddings"]
    assert kept.tolist() == [[40, 41, 42, 43], [44, 45, 46, 47]]
    assert kept.untyped_storage().nbytes() == kept.nbytes == 32


def test_a_missing_key_is_named() -> None:
    cache = EncoderCache()
    cache.put("a", {})
    cache.drop(["a"])
    assert "a" not in cache
    with pytest.raises(InvariantError) as caught:
        cache.get("a")
    assert caught.value.details == {"key": "a"}


class EncoderCacheMachine(RuleBasedStateMachine):
    """Against a plain dictionary of values."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = EncoderCache()
        self.model: dict[str, list[int]] = {}

    keys = st.sampled_from("abcd")

    @rule(key=keys, values=st.lists(st.integers(0, 9), max_size=5))
    def put(self, key: str, values: list[int]) -> None:
        self.cache.put(key, {"embeddings": torch.tensor(values, dtype=torch.int32)})
        self.model[key] = values

    @rule(dropped=st.lists(keys, max_size=3))
    def drop(self, dropped: list[str]) -> None:
        expected = len(set(dropped) & set(self.model))
        assert self.cache.drop(dropped) == expected
        for key in dropped:
            self.model.pop(key, None)

    @invariant()
    def agrees(self) -> None:
        check_encoder_cache(self.cache)
        assert len(self.cache) == len(self.model)
        assert sorted(self.cache.keys()) == sorted(self.model)
        assert self.cache.nbytes == sum(4 * len(values) for values in self.model.values())
        for key, values in self.model.items():
            assert self.cache.get(key)["embeddings"].tolist() == values


TestEncoderCacheMachine = EncoderCacheMachine.TestCase
TestEncoderCacheMachine.settings = settings(max_examples=examples(25), stateful_step_count=15)
