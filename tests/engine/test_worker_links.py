"""WorkerLinks and StepResults: who is attached, when a step is complete, and that ranks must agree."""

from __future__ import annotations

import pytest

from mmcached.engine.worker_links import StepResults, WorkerLinks
from mmcached.wire.errors import ErrorInfo, InvariantError
from mmcached.wire.messages.engine import StepFailed, StepOutput, WorkerHello
from mmcached.wire.stats import WorkerStats


def output(digest: bytes) -> StepOutput:
    return StepOutput(1, 2, 3, digest, [], [], [], [], WorkerStats())


def test_all_ranks_must_attach() -> None:
    links = WorkerLinks(2)
    first = links.hello(b"a", WorkerHello(0, 10, "d", "cpu"))
    first.is_attached = True
    assert not links.are_all_attached
    second = links.hello(b"b", WorkerHello(1, 11, "d", "cpu"))
    assert not links.are_all_attached
    second.is_attached = True
    assert links.are_all_attached
    assert [link.rank for link in links.in_rank_order()] == [0, 1]


def test_repeated_hello_keeps_the_link_and_a_new_process_gets_a_new_one() -> None:
    links = WorkerLinks(1)
    link = links.hello(b"a", WorkerHello(0, 10, "d", "cpu"))
    link.is_attached = True
    assert links.hello(b"b", WorkerHello(0, 10, "d", "cpu")) is link
    assert link.peer == b"b"
    assert not links.hello(b"c", WorkerHello(0, 12, "d", "cpu")).is_attached
    assert links.by_epoch(10) is None


def test_step_is_complete_when_every_rank_has_answered() -> None:
    results = StepResults(3, 2, deadline=0.0)
    results.add(1, output(b"x"), [b"1"])
    results.add(1, output(b"x"), [b"1"])
    assert not results.is_complete
    assert results.missing_ranks == [0]
    results.add(0, output(b"x"), [b"0"])
    assert results.is_complete
    assert results.answer() == (output(b"x"), [b"0"])


def test_ranks_that_differ_are_an_invariant_error() -> None:
    results = StepResults(3, 2, deadline=0.0)
    results.add(0, output(b"x"), [])
    results.add(1, output(b"y"), [])
    with pytest.raises(InvariantError, match=r"ranks \[1\]"):
        results.answer()


def test_one_failed_rank_fails_the_step() -> None:
    results = StepResults(3, 2, deadline=0.0)
    failed = StepFailed(1, 2, 3, ErrorInfo("stale_handle", "gone", True, {}), [])
    results.add(0, output(b"x"), [])
    results.add(1, failed, [])
    assert results.failure() == failed
