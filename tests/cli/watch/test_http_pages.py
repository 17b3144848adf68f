"""The HTTP port over real sockets: what it says, that it always says it in time, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mmcached.cli.admin.observe import fetch
from mmcached.cli.watch import http_pages as admin
from mmcached.cli.watch import http_server
from mmcached.cli.watch.http_pages import AdminServer
from mmcached.cli.watch.readiness import ReadinessCheck
from mmcached.cli.watch.service_status import Readiness, ServiceStatus, ServiceView, process_state
from mmcached.shm.stats.page import StatsPageReader
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, InvariantError
from mmcached.wire.paths import RunDir
from mmcached.wire.stats import FrontendStats
from tests.cli.fake_view import ENGINE, FRONTEND, HTTP_DEADLINE_S, FakeView, a_role, get, page_of
from tests.client.services import fake_service
from tests.shm.processes import wait_until

WORKS = Readiness(True, "1 engine(s) and 2 worker(s) answered the probe")


@pytest.fixture
def reader(run_dir: Path) -> Iterator[StatsPageReader]:
    with page_of(run_dir, FRONTEND) as (reader, writers):
        writers[FRONTEND].publish(FrontendStats(requests_done=5))
        yield reader


def works(run_dir: Path, timeout_s: float) -> Readiness:
    return WORKS


def server_of(view: FakeView, reader: StatsPageReader) -> AdminServer:
    return AdminServer(view, reader, readiness=ReadinessCheck(view, reader.read, ask=works))


def test_a_service_that_works(run_dir: Path, reader: StatsPageReader) -> None:
    view = FakeView(run_dir, given=[a_role(FRONTEND, os.getpid(), "running")])
    with server_of(view, reader) as server:
        url = server.url
        assert get(f"{url}/healthz")[:2] == (200, "ok\n")
        assert get(f"{url}/readyz")[:2] == (200, "ready: 1 engine(s) and 2 worker(s) answered the probe\n")
        code, text, headers = get(f"{url}/metrics")
        assert code == 200
        assert headers["content-type"].startswith("text/plain; version=")
        assert "mmcached_requests" in {family.name for family in text_string_to_metric_families(text)}
        code, text, headers = get(f"{url}/status")
        assert (code, headers["content-type"]) == (200, "application/json")
        status = msgspec.json.decode(text, type=ServiceStatus)
        assert (status.ready, status.run_dir, status.stats.requests_done) == (True, str(run_dir), 5)
        assert [role.name for role in status.roles] == ["frontend"]
        assert get(f"{url}/nothing")[0] == 404
        _, text, headers = get(f"{url}/metrics", {"accept": "application/openmetrics-text; version=1.0.0"})
    assert headers["content-type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_it_starts_once_and_again_after_a_stop(run_dir: Path, reader: StatsPageReader) -> None:
    server = server_of(FakeView(run_dir), reader)
    url = server.start()
    assert server.url == url
    assert url.startswith("http://127.0.0.1:")
    with pytest.raises(InvariantError):
        server.start()
    server.stop()
    server.stop()
    assert server.url == ""
    with server:
        assert get(f"{server.url}/healthz")[0] == 200


def test_a_taken_port_is_a_clear_error(run_dir: Path, reader: StatsPageReader) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = server_of(FakeView(run_dir, ServiceConfig(http_port=port)), reader)
        with pytest.raises(ConfigError) as caught:
            server.start()
    assert (caught.value.details["field"], caught.value.details["value"]) == ("http_port", port)


def test_without_a_port_there_is_only_the_socket(run_dir: Path, reader: StatsPageReader) -> None:
    with server_of(FakeView(run_dir, ServiceConfig()), reader) as server:
        assert server.url == ""
        assert fetch(run_dir, "/healthz", HTTP_DEADLINE_S) == b"ok\n"
    assert not RunDir(run_dir).http_socket.exists()


def test_a_draining_service(run_dir: Path, reader: StatsPageReader) -> None:
    with server_of(FakeView(run_dir, is_draining=True), reader) as server:
        url = server.url
        assert get(f"{url}/readyz")[:2] == (503, "not ready: draining\n")
        assert get(f"{url}/healthz")[0] == 200
        assert msgspec.json.decode(get(f"{url}/status")[1], type=ServiceStatus).draining


def test_a_stopped_engine_is_named(run_dir: Path, reader: StatsPageReader) -> None:
    """Every process lives, the frontend takes the probe, and nobody answers: 503, and why."""
    with (
        subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as engine,
        fake_service(run_dir, lambda message: []),
    ):
        try:
            engine.send_signal(signal.SIGSTOP)
            wait_until(lambda: process_state(engine.pid) == "T")
            given = [a_role(FRONTEND, os.getpid(), "running"), a_role(ENGINE, engine.pid, "running")]
            with AdminServer(FakeView(run_dir, given=given), reader) as server:
                url = server.url
                reason = (
                    f"engine 0 (pid {engine.pid}) is stopped (state T); probe of the frontend: no answer within 0.2 s"
                )
                code, text, _ = get(f"{url}/readyz?verbose=1")
                assert code == 503
                first, *roles = text.splitlines()
                assert first == f"not ready: {reason}"
                assert roles[0].startswith(f"[+] frontend (pid {os.getpid()}) is running, heartbeat ")
                assert roles[1] == f"[-] engine 0 (pid {engine.pid}) is stopped (state T)"
                status = msgspec.json.decode(get(f"{url}/status")[1], type=ServiceStatus)
                assert (status.ready, [role.state for role in status.roles]) == (False, ["running", "stopped"])
        finally:
            engine.kill()


def test_a_supervisor_without_a_descriptor_left_goes_on(run_dir: Path, reader: StatsPageReader) -> None:
    view = FakeView(run_dir, given=[a_role(FRONTEND, os.getpid(), "running")])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with AdminServer(view, reader) as server:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            server.sample(reader.read())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        status = msgspec.json.decode(get(f"{server.url}/status")[1], type=ServiceStatus)
    assert [role.state for role in status.roles] == ["running"]


def test_a_wedged_data_path_wedges_nothing_else(
    run_dir: Path, reader: StatsPageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that breaks its own deadline: its asker is told so, and the others do not wait for it."""
    monkeypatch.setattr(admin, "LOOK_TIMEOUT_S", 0.5)
    hangs, may_end = threading.Event(), threading.Event()

    def hang(path: Path, timeout_s: float) -> Readiness:
        hangs.set()
        assert may_end.wait(60)
        return WORKS

    view = FakeView(run_dir, ServiceConfig(probe_timeout_s=0.01, http_port=0))
    server = AdminServer(view, reader, readiness=ReadinessCheck(view, reader.read, ask=hang))
    url = server.start()
    try:
        answers: list[tuple[int, str]] = []
        asker = threading.Thread(target=lambda: answers.append(get(f"{url}/readyz")[:2]))
        asker.start()
        assert hangs.wait(60)
        assert get(f"{url}/healthz")[0] == 200
        assert get(f"{url}/metrics")[0] == 200
        code, text, _ = get(f"{url}/status")
        assert code == 200
        assert "probe" in msgspec.json.decode(text, type=ServiceStatus).reason
        asker.join(60)
        assert answers[0][0] == 503
        assert "the probe did not end within" in answers[0][1]
        assert not may_end.is_set()
    finally:
        may_end.set()
        server.stop()


def test_figures_that_cannot_be_had_in_time_are_a_503(
    run_dir: Path, reader: StatsPageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "LOOK_TIMEOUT_S", 0.05)
    may_end = threading.Event()

    class Stuck(FakeView):
        def __call__(self) -> ServiceView:
            assert threading.current_thread() is threading.main_thread() or may_end.wait(60)
            return super().__call__()

    server = server_of(Stuck(run_dir), reader)
    url = server.start()
    try:
        assert get(f"{url}/metrics")[0] == 503
        assert get(f"{url}/status")[0] == 503
        assert get(f"{url}/healthz")[0] == 200
    finally:
        may_end.set()
        server.stop()


def test_an_idle_connection_does_not_hold_up_the_stop(run_dir: Path, reader: StatsPageReader) -> None:
    with server_of(FakeView(run_dir), reader) as server, connection_to(server) as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert idle.recv(64).startswith(b"HTTP/1.1 200")
        server.stop()
        while idle.recv(4096):
            pass


def test_ipv6_makes_a_url(run_dir: Path, reader: StatsPageReader) -> None:
    if not socket.has_ipv6 or not _can_bind("::1"):
        pytest.skip("no IPv6 loopback here")
    with server_of(FakeView(run_dir, ServiceConfig(http_host="::1", http_port=0)), reader) as server:
        assert get(f"{server.url}/healthz")[0] == 200


def _can_bind(host: str) -> bool:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


# ---- those who mean no good


def connection_to(server: AdminServer) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=HTTP_DEADLINE_S)


def say(server: AdminServer, words: bytes) -> bytes:
    """Send a request as it stands; return all that comes back."""
    with connection_to(server) as connection:
        connection.sendall(words)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return answer


@pytest.mark.parametrize("words", [b"", b"GET /healthz HTT", b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_whoever_holds_connections_the_service_is_alive(words: bytes, run_dir: Path, reader: StatsPageReader) -> None:
    """Nor do they take this process's descriptors."""
    with server_of(FakeView(run_dir), reader) as server, ExitStack() as stack:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(300):
            stack.enter_context(connection_to(server)).sendall(words)
        for _ in range(5):
            assert get(f"{server.url}/healthz")[:2] == (200, "ok\n")
        assert fetch(run_dir, "/healthz", HTTP_DEADLINE_S) == b"ok\n"
        ours = len(os.listdir("/proc/self/fd")) - before - 300
        assert ours <= http_server.MAX_CONNECTIONS + http_server.ACCEPTED_AT_ONCE


def test_a_head_has_a_deadline(run_dir: Path, reader: StatsPageReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEAD_TIMEOUT_S", 0.05)
    with server_of(FakeView(run_dir), reader) as server:
        assert say(server, b"GET /healthz HTTP/1.1\r\nHost: localh") == b""


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.0\r\n\r\n", 200),
        (b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 200),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + b"x" * (4 << 20), 200),
    ],
)
def test_requests_as_they_stand(words: bytes, status: int, run_dir: Path, reader: StatsPageReader) -> None:
    with server_of(FakeView(run_dir), reader) as server:
        assert say(server, words).startswith(f"HTTP/1.1 {status} ".encode())


def test_head_has_no_content(run_dir: Path, reader: StatsPageReader) -> None:
    with server_of(FakeView(run_dir), reader) as server:
        head, _, content = say(server, b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").partition(b"\r\n\r\n")
    assert b"content-length: 3" in head
    assert content == b""


def kept(server: AdminServer) -> AdminServer:
    server.keep()
    return server


def test_a_server_whose_thread_has_ended_is_started_again(
    run_dir: Path, reader: StatsPageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    class Ending(http_server.HttpServer):
        async def serve(self, listeners: Sequence[socket.socket], is_up: Callable[[], None]) -> None:
            is_up()
            await asyncio.to_thread(may_end.wait, HTTP_DEADLINE_S)

    monkeypatch.setattr(admin, "HttpServer", Ending)
    with server_of(FakeView(run_dir), reader) as server:
        first = server.url
        server.keep()
        assert server.url == first
        monkeypatch.undo()
        may_end.set()
        wait_until(lambda: kept(server).url != first)
        assert fetch(run_dir, "/healthz", HTTP_DEADLINE_S) == b"ok\n"


def test_a_socket_that_somebody_has_removed_comes_back(run_dir: Path, reader: StatsPageReader) -> None:
    with server_of(FakeView(run_dir), reader) as server:
        RunDir(run_dir).http_socket.unlink()
        server.keep()
        assert fetch(run_dir, "/healthz", HTTP_DEADLINE_S) == b"ok\n"


def test_an_end_leaves_the_name_to_who_has_it_by_now(run_dir: Path, reader: StatsPageReader) -> None:
    first = server_of(FakeView(run_dir), reader)
    first.start()
    with server_of(FakeView(run_dir), reader):
        first.stop()
        assert fetch(run_dir, "/healthz", HTTP_DEADLINE_S) == b"ok\n"
