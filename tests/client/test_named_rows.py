"""Rows that an answer names are read from the store, joined with those that came inline, and dropped there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmcached.client import Client
from mmcached.client.results import generation_from
from mmcached.wire.errors import RemoteProtocolError
from mmcached.wire.messages.client import Generated
from mmcached.wire.messages.frontend import DropRecord, Generate
from mmcached.wire.messages.parts import Rows, SavedRows, Tensor
from tests.client.services import StoreService

VALUES = np.arange(60, dtype=np.int32).reshape(20, 3)


def named(first: int, end: int) -> SavedRows:
    return SavedRows("hidden_states", first, f"rows/{first}", "int32", (end - first, 3))


def put(run_dir: Path, *parts: SavedRows) -> None:
    with Client(run_dir) as worker:
        for part in parts:
            assert worker.put(part.name, {"rows": VALUES[part.first : part.end]})


def asked(service: StoreService) -> list[bool]:
    return [message.takes_keys for message in service.received if isinstance(message, Generate)]


def test_named_rows_are_read_and_dropped(service: StoreService, client: Any, run_dir: Path) -> None:
    service.rows = [named(0, 12), named(12, 20)]
    put(run_dir, *service.rows)
    answer = client.generate([1, 2], hidden_states=True)
    assert np.array_equal(answer.hidden_states.numpy(), VALUES)
    answer.hidden_states.add_(1)  # it is the caller's own
    assert asked(service) == [True]
    client.probe()  # behind which the drops have come
    assert service.count(DropRecord) == 2
    assert client.contains_many([part.name for part in service.rows]) == [False, False]
    assert service.leases == 0


def test_rows_that_are_gone_are_asked_for_inline(service: StoreService, client: Any, run_dir: Path) -> None:
    service.rows = [named(0, 12), named(12, 20)]
    put(run_dir, service.rows[0])
    assert client.generate([1, 2], hidden_states=True).hidden_states is None, "the model here has none inline"
    assert asked(service) == [True, False]


def test_who_wants_no_rows_takes_no_keys(service: StoreService, client: Any) -> None:
    client.generate([1, 2])
    assert asked(service) == [False]


def answer_with(
    inline: list[tuple[int, int]], saved: list[SavedRows]
) -> tuple[Generated, list[bytes], list[memoryview]]:
    rows = [
        Rows("hidden_states", first, Tensor(frame, "int32", (end - first, 3)))
        for frame, (first, end) in enumerate(inline)
    ]
    payload = [VALUES[first:end].tobytes() for first, end in inline]
    found = [memoryview(VALUES[part.first : part.end].tobytes()) for part in saved]
    return Generated(1, [1], "length", 1, 0, rows, saved), payload, found


def test_parts_are_joined_in_their_order_and_what_overlaps_comes_once() -> None:
    answer = answer_with([(0, 2), (9, 20)], [named(1, 7), named(5, 10)])
    rows = generation_from(*answer).rows["hidden_states"]
    assert (rows.first, rows.end) == (0, 20)
    assert np.array_equal(np.asarray(rows.tensor), VALUES)


def test_parts_between_which_rows_are_missing_are_an_error() -> None:
    with pytest.raises(RemoteProtocolError):
        generation_from(*answer_with([(0, 2)], [named(3, 7)]))
