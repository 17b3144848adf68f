"""Which errors are a miss, and who hears of it how often."""

from __future__ import annotations

import logging

import pytest

from mmcached.client.fail_open import WARNING_INTERVAL_S, FailOpen
from mmcached.wire.errors import CacheFull, InvalidRequest, InvariantError, LocalProtocolError, MmcachedError, PeerGone


@pytest.mark.parametrize("error", [PeerGone("gone"), CacheFull(3, 2, 1), MmcachedError("unknown")])
def test_what_the_service_does_wrong_is_a_miss_if_wanted(error: MmcachedError) -> None:
    for is_open in (True, False):
        guard = FailOpen(is_open=is_open)
        assert guard.is_miss("get", error) == is_open
        assert guard.counters.failures == 1


@pytest.mark.parametrize("error", [InvalidRequest("f", 1, "x"), LocalProtocolError("bug"), InvariantError("bug")])
def test_what_we_or_the_caller_do_wrong_is_raised(error: MmcachedError) -> None:
    guard = FailOpen(is_open=True)
    assert not guard.is_miss("get", error)
    assert guard.counters.failures == 0


def test_one_warning_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    guard = FailOpen(is_open=True, clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, "mmcached.client"):
        for _ in range(3):
            guard.is_miss("get", PeerGone("gone"))
        now[0] += WARNING_INTERVAL_S
        guard.is_miss("put", PeerGone("gone again"))
    assert [record.message for record in caplog.records] == [
        "get goes on without the service (1 times so far): gone",
        "put goes on without the service (4 times so far): gone again",
    ]
