"""A write that ends in the middle: what it has named and what it has written do not contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mmcached.worker.hidden_states import KeySpec, RowChunk, RowSpan, TensorPrefixStore
from tests.worker.integrity import check_prefix_store


class Torn(dict[str, torch.Tensor]):
    """Gives its first key, and then nothing."""

    def items(self) -> Any:
        return self._torn()

    def _torn(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield next(iter(super().items()))
        raise OSError("torn")


def rows(first: int, num: int) -> torch.Tensor:
    return torch.arange(first, first + num, dtype=torch.int32).view(-1, 1)


@pytest.mark.parametrize("is_block_new", [False, True])
def test_a_block_that_got_its_name_in_a_torn_write_can_be_written_again(is_block_new: bool) -> None:
    store = TensorPrefixStore(2, [KeySpec(key, (1,), torch.int32) for key in "ab"], byte_budget=1 << 16)
    first, names = 2 if is_block_new else 3, [b"0" * 32, b"1" * 32]
    store.write([RowChunk(1, 0, first, 0, names[:1])], {key: rows(0, first) for key in "ab"})
    store.commit()
    step = [RowChunk(1, first, 4 - first, 1, names[1:])]
    with pytest.raises(OSError, match="torn"):
        store.write(step, Torn({key: rows(90, 4 - first) for key in "ab"}))
    store.withdraw()
    check_prefix_store(store)
    store.commit()
    assert store.usable_prefix(names, 4, ["a", "b"]) == first
    store.write([RowChunk(1, first, 4 - first, 2, [])], {key: rows(first, 4 - first) for key in "ab"})
    assert store.commit() == {names[1]: {"a": 2, "b": 2}}
    check_prefix_store(store)
    with store.read([RowSpan(1, 0, 4)], ["a", "b"]) as found:
        assert found.get("a", 0).tolist() == found.get("b", 0).tolist() == rows(0, 4).tolist()
