"""Which errors are a miss, and who hears of it how often."""

from __future__ import annotations

import logging

import pytest

from mmcached.client.store.fail_open import WARNING_INTERVAL_S, FailOpen
from mmcached.wire.errors import CacheFull, InvalidRequest, InvariantError, LocalProtocolError, MmcachedError, PeerGone
from tests.clock import Clock


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


def test_each_cause_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    guard = FailOpen(is_open=True, clock=clock)
    with caplog.at_level(logging.WARNING, "mmcached.client"):
        for _ in range(3):
            guard.is_miss("get", PeerGone("gone"))
            guard.note_refusal("too large", "too large")
            guard.warn_once("no entry", "ring 1", "slower")
        clock.now += WARNING_INTERVAL_S
        guard.is_miss("put", PeerGone("gone again"))
        FailOpen(is_open=True).warn_once("no entry", "ring 1", "slower")  # of this process, too
        guard.warn_once("no entry", "ring 2", "slower there")
    assert [record.message for record in caplog.records] == [
        "get goes on without the service: gone (1 times so far; see store_counters())",
        "a record was not kept: too large (1 times so far; see store_counters())",
        "slower",
        "put goes on without the service: gone again (4 times so far; see store_counters())",
        "slower there",
    ]
    assert guard.counters.causes == {"peer_gone": 4, "too large": 3}
    assert guard.counters.failures == 4
