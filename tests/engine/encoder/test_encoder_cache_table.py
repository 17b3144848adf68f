"""Encoder cache managers of both scopes: what their comparison in test_encoder_model leaves open."""

from __future__ import annotations

import pytest

from mmcached.engine import make_encoder_cache_manager
from mmcached.engine.encoder.encoder_cache_table import EncoderCacheTable
from mmcached.wire.errors import LocalProtocolError
from tests.engine.builders import encode


@pytest.fixture(params=["shared", "request"])
def table(request: pytest.FixtureRequest) -> EncoderCacheTable:
    return make_encoder_cache_manager(request.param, 10)


def test_cached_ids_are_the_caller_s_own_set(table: EncoderCacheTable) -> None:
    request = encode(1, ("a", 1), ("b", 1), ("c", 1))
    table.allocate(request, 0)
    table.allocate(request, 2)
    table.get_cached_input_ids(request).clear()
    assert table.get_cached_input_ids(request) == {0, 2}


def test_what_is_there_or_does_not_fit_is_refused_with_the_reason(table: EncoderCacheTable) -> None:
    request = encode(1, ("a", 4), ("b", 7))
    table.allocate(request, 0)
    for input_id, reason in ((0, "cached already"), (1, "7 embeddings, 6 free")):
        with pytest.raises(LocalProtocolError, match=reason):
            table.allocate(request, input_id)
    assert (table.num_free_slots, table.num_freeable_slots, table.stats().queries) == (6, 6, 1)


def test_steps_do_not_overlap(table: EncoderCacheTable) -> None:
    with pytest.raises(LocalProtocolError):
        table.withdraw(0)
    table.begin_step(0)
    with pytest.raises(LocalProtocolError):
        table.begin_step(1)
    with pytest.raises(LocalProtocolError):
        table.commit(1)
    table.commit(0)
