"""Token ids become bytes one way only, whatever holds them, and what is no token id is named."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcached.cache.hashing.token_bytes import MAX_TOKEN_ID, pack_token_ids
from mmcached.wire.errors import InvalidRequest


@given(st.lists(st.integers(0, MAX_TOKEN_ID)))
def test_four_bytes_each_little_endian(token_ids: list[int]) -> None:
    assert pack_token_ids(token_ids) == struct.pack(f"<{len(token_ids)}I", *token_ids)


@pytest.mark.parametrize("token_ids", [b"\x01\x02\x03", (1, 2, 3), range(1, 4)], ids=lambda value: type(value).__name__)
def test_any_sequence_of_numbers_is_one_of_token_ids(token_ids: Sequence[int]) -> None:
    assert pack_token_ids(token_ids) == pack_token_ids([1, 2, 3])


@pytest.mark.parametrize("value", [-1, MAX_TOKEN_ID + 1, 2.5, None, "7"], ids=repr)
def test_the_first_that_is_no_token_id_is_named(value: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        pack_token_ids([5, value, -2], 10)
    assert caught.value.details["field"] == "token_ids[11]"
    assert caught.value.details["value"] == (value if isinstance(value, int) else repr(value))
    assert f"0 to {MAX_TOKEN_ID}" in str(caught.value)
