"""Readiness is the data path's answer; what is known of the processes says why there is none."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from mmcached.cli.watch.readiness import ReadinessCheck, probe
from mmcached.cli.watch.service_status import Readiness
from mmcached.wire.errors import DeadlineExceeded, ServiceUnavailable, error_to_wire
from mmcached.wire.messages.client import Failed, Flushed, Probed, ToClient
from mmcached.wire.messages.frontend import Probe
from tests.cli.fake_view import ENGINE, FakeView, a_role
from tests.client.services import fake_service

ANSWERED = Readiness(True, "1 engine(s) and 2 worker(s) answered the probe")


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([Probed(1, [0], 2, [])], ANSWERED),
        (
            [Probed(1, [1], 2, ["probe of engine 0: no answer within 5.0 s"])],
            Readiness(True, f"{ANSWERED.reason}; probe of engine 0: no answer within 5.0 s"),
        ),
        ([Probed(1, [0], 0, [])], Readiness(False, "no engine with workers took part in the probe")),
        (
            [Probed(1, [], 0, [])],
            Readiness(True, "the frontend answered the probe; it is a store, with no engine to reach"),
        ),
        (
            [Failed(1, error_to_wire(DeadlineExceeded("probe of engine 0", 5.0)))],
            Readiness(False, "probe of engine 0: no answer within 5.0 s"),
        ),
        ([Flushed(1)], Readiness(False, "the probe was answered with Flushed")),
        ([], Readiness(False, "probe of the frontend: no answer within 0.05 s")),
    ],
)
def test_probe_asks_and_says_what_the_answer_means(run_dir: Path, answers: list[ToClient], found: Readiness) -> None:
    timeout_s = 5.0 if answers else 0.05
    with fake_service(run_dir, lambda message: answers) as received:
        assert probe(run_dir, timeout_s) == found
    assert received == [Probe(1, timeout_s)]


def test_a_frontend_that_takes_no_connection_is_named(run_dir: Path) -> None:
    """As one that was stopped before we came: the kernel takes the connection, nobody greets."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_dir / "client.sock"))
        listener.listen()
        assert probe(run_dir, 0.05).reason == "probe of the frontend: no answer within 0.05 s"


def test_a_missing_frontend_is_known_at_once(run_dir: Path) -> None:
    assert "socket" in probe(run_dir, 3600.0).reason


# ---- the check


class DataPath:
    """Counts the probes and answers as told."""

    def __init__(self, outcome: Readiness = ANSWERED) -> None:
        self.outcome = outcome
        self.num_asked = 0

    def __call__(self, run_dir: Path, timeout_s: float) -> Readiness:
        self.num_asked += 1
        return self.outcome


def test_an_answer_is_good_for_a_second() -> None:
    now = 100.0
    path = DataPath()
    check = ReadinessCheck(FakeView(Path("/")), dict, ask=path, clock=lambda: now)
    first = check.check()
    assert first == ANSWERED
    path.outcome = Readiness(False, "gone")
    now += 0.75
    second = check.check()
    assert (second.ready, second.checked_ago_s, path.num_asked) == (True, 0.75, 1)
    now += 0.25
    third = check.check()
    assert (third.ready, third.reason, third.checked_ago_s, path.num_asked) == (False, "gone", 0.0, 2)


def test_the_reason_says_which_role_suffers() -> None:
    view = FakeView(Path("/"), given=[a_role(ENGINE, None, "restarting", restarts=3)])
    check = ReadinessCheck(view, dict, ask=DataPath(Readiness(False, "no engine is ready")))
    assert check.check().reason == "engine 0 is restarting (restarts so far: 3); no engine is ready"


def test_a_page_that_cannot_be_read_does_not_hide_the_reason() -> None:
    def broken() -> dict[object, object]:
        raise ServiceUnavailable("the page is gone")

    check = ReadinessCheck(FakeView(Path("/")), broken, ask=DataPath(Readiness(False, "no engine")))  # type: ignore[arg-type]
    assert check.check().reason == "the page is gone; no engine"


def test_a_draining_service_is_not_asked() -> None:
    path = DataPath()
    check = ReadinessCheck(FakeView(Path("/"), is_draining=True), dict, ask=path)
    assert (check.check().ready, check.check().reason, path.num_asked) == (False, "draining", 0)


def test_many_askers_make_one_probe() -> None:
    """The data path answers only when all have asked, so none of them can have come too late for it."""
    asked = threading.Semaphore(0)
    probes = []

    def ask(run_dir: Path, timeout_s: float) -> Readiness:
        probes.append(timeout_s)
        for _ in range(8):
            assert asked.acquire(timeout=60)
        return ANSWERED

    check = ReadinessCheck(FakeView(Path("/")), dict, ask=ask, clock=lambda: 1.0)
    found = []

    def one() -> None:
        asked.release()
        found.append(check.check().ready)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(probes) == 1
    assert found == [True] * 8


def test_whoever_waits_for_a_probe_that_hangs_is_told() -> None:
    hangs, may_end = threading.Event(), threading.Event()

    def ask(run_dir: Path, timeout_s: float) -> Readiness:
        hangs.set()
        assert may_end.wait(60)
        return ANSWERED

    check = ReadinessCheck(FakeView(Path("/")), dict, ask=ask)
    thread = threading.Thread(target=check.check)
    thread.start()
    assert hangs.wait(60)
    found = check.check()
    may_end.set()
    thread.join(60)
    assert (found.ready, found.reason) == (False, "the last probe has not come to an end")
