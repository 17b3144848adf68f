"""What is promised of records in any server, promised of those in Mooncake."""

from __future__ import annotations

import pytest

from mmcached.second_level.mooncake.place import read_place
from mmcached.second_level.mooncake.start import start
from tests.hosts.mooncake.stores import Master
from tests.second_level.conftest import make_records
from tests.second_level.test_shared_records import (
    one,
    test_a_large_record_is_kept_in_parts,
    test_a_new_epoch_has_no_records,
    test_one_host_computes,
    test_what_lies_there_is_not_sent_again,
    test_what_one_saves_another_finds,
    two,
)

__all__ = [
    "make_records",
    "one",
    "test_a_large_record_is_kept_in_parts",
    "test_a_new_epoch_has_no_records",
    "test_one_host_computes",
    "test_what_lies_there_is_not_sent_again",
    "test_what_one_saves_another_finds",
    "two",
]


@pytest.fixture
def server(shared_master: Master) -> Master:
    """Return a master with memory in which nothing lies."""
    with start(read_place(shared_master.url)) as client:
        client.store.remove_all(True)  # type: ignore[attr-defined]
    return shared_master
