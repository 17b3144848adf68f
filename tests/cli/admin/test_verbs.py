"""The verbs against a service in another process: answers, exit statuses, and what they say when it hangs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest
import typer
from typer.testing import CliRunner, Result

from mmcached.cli.admin import observe, verbs, versions
from mmcached.cli.admin.observe import look_at
from mmcached.cli.config import show
from mmcached.cli.installed import installed_version
from mmcached.cli.serve.seat import Seat, supervisor_pid
from mmcached.cli.watch.service_status import ServiceStatus, process_state
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError, DeadlineExceeded, ServiceUnavailable
from mmcached.wire.handle import RingAnnouncement
from mmcached.wire.messages.client import Flushed, ToClient
from mmcached.wire.messages.frontend import Flush, FromClient
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.unix_sockets import NamedSocket
from mmcached.wire.version import PROTOCOL_VERSION, VERSION_FIELD
from tests.client.services import fake_service
from tests.house import REPOSITORY
from tests.present import present
from tests.shm.processes import DEADLINE_S, Process, wait_until
from tests.shm.rings import make_ring
from tests.shm.segment.test_sweep import planted

Service = subprocess.Popen[str]
ANSWERED = "1 engine(s) and 2 worker(s) answered the probe"


@contextmanager
def service(run_dir: Path, data_path: str = "works") -> Iterator[Service]:
    command = [sys.executable, "-m", "tests.cli.service_child", str(run_dir), data_path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as child:
        try:
            assert child.stdout is not None
            ready, _, _ = select.select([child.stdout], [], [], DEADLINE_S)
            assert ready
            assert child.stdout.readline() == "up\n"
            yield child
        finally:
            child.kill()
            child.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def lasting() -> Iterator[tuple[Path, int]]:
    """The run directory and the pid of a service that works, for all tests that leave it so."""
    with tempfile.TemporaryDirectory(prefix="mmc-", dir="/tmp") as scratch, service(Path(scratch)) as child:
        yield Path(scratch), child.pid


def call(*arguments: str) -> Result:
    app = typer.Typer()
    verbs.register(app)
    return CliRunner().invoke(app, arguments)


def call_at(run_dir: Path, *arguments: str) -> Result:
    return call(*arguments, "--run-dir", str(run_dir))


# ---- ping and status


def test_a_service_that_works(lasting: tuple[Path, int]) -> None:
    run_dir, pid = lasting
    result = call_at(run_dir, "ping")
    assert (result.exit_code, result.stdout) == (0, f"ready: {ANSWERED}\n")
    result = call_at(run_dir, "status", "--json")
    status = msgspec.json.decode(result.stdout, type=ServiceStatus)
    assert (result.exit_code, status.ready, status.source) == (0, True, "supervisor")
    assert status.stats.requests_done == 5
    assert [(role.name, role.pid) for role in status.roles] == [("supervisor", pid), ("frontend", pid)]
    result = call_at(run_dir, "status")
    assert result.exit_code == 0
    assert "frontend" in result.stdout
    assert str(pid) in result.stdout
    result = call_at(run_dir, "flush")
    assert (result.exit_code, result.stdout) == (0, "flushed\n")


def test_versions_of_both_sides(lasting: tuple[Path, int], run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = f"{installed_version()}, protocol {PROTOCOL_VERSION}"
    versions.print_versions(lasting[0])
    assert capsys.readouterr().out == f"client: {mine}\nservice: {mine}\n"
    versions.print_versions(run_dir)
    assert capsys.readouterr().out == f"client: {mine}\nservice: none has run in {run_dir}\n"
    RunDir(run_dir).config.write_text(json.dumps({VERSION_FIELD: 1}))
    versions.print_versions(run_dir)
    assert "the last one spoke protocol 1" in capsys.readouterr().out


def shows(*arguments: str) -> Result:
    app = typer.Typer()
    app.command(context_settings=show.TAKES_SETTINGS)(show.show)
    return CliRunner().invoke(app, arguments)


def test_settings_of_a_service_that_runs(lasting: tuple[Path, int], run_dir: Path) -> None:
    """Not what one would be started with now; and who has set them is not known, but for what is a default."""
    config = ServiceConfig.load(RunDir(lasting[0]).config)
    shown = shows("--live", "--json", "--origin", "--run-dir", str(lasting[0]))
    assert shown.exit_code == 0, shown.exception
    answer = json.loads(shown.stdout)
    assert msgspec.convert(answer["config"], ServiceConfig) == config
    changed = {path for path, origin in answer["origins"].items() if origin != "default"}
    assert changed == {"probe_timeout_s"}
    assert "probe_timeout_s" in shows("--live", "--run-dir", str(lasting[0])).stdout
    ServiceConfig().save(RunDir(run_dir).config)
    nobody = shows("--live", "--run-dir", str(run_dir))
    assert nobody.exit_code == 3, "what a dead service has left is no service"
    assert f"no service in {run_dir}" in nobody.stderr
    for wrong in (["--live", "--world-size", "1"], ["--live", "--config", "x.toml"], ["--run-dir", str(lasting[0])]):
        assert isinstance(shows(*wrong).exception, ConfigError), wrong


def test_a_service_that_does_not_and_then_is_dead(run_dir: Path) -> None:
    with service(run_dir, "broken"):
        result = call_at(run_dir, "ping")
        assert (result.exit_code, result.stdout) == (1, "not ready: probe of the frontend: no answer within 0.2 s\n")
        assert call_at(run_dir, "status").exit_code == 1
    assert RunDir(run_dir).http_socket.exists()
    assert call_at(run_dir, "ping").exit_code == 3, "what a dead service has left is no service"


@pytest.mark.parametrize("verb", ["ping", "status", "drain", "flush"])
def test_no_service(run_dir: Path, verb: str) -> None:
    result = call_at(run_dir, verb)
    assert (result.exit_code, result.stdout) == (3, "")
    assert f"no service in {run_dir}" in result.stderr


def test_a_run_directory_that_may_not_be_read_is_for_who_opens_it_to_judge(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who parses the command line would call it a mistake in that, with the status of a service that is not there."""
    monkeypatch.setattr(os, "access", lambda *values, **named: False)
    monkeypatch.setattr(RunDir, "open", mock.Mock(side_effect=ConfigError("run_dir", "d", "Permission denied")))
    result = call_at(run_dir, "ping")
    assert isinstance(result.exception, ConfigError), result.output


def test_a_supervisor_that_hangs_is_looked_at_through_the_page(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, it keeps its seat and takes connections, and says nothing: the page and /proc tell."""
    monkeypatch.setattr(observe, "HTTP_SLACK_S", 0.1)
    with service(run_dir) as child:
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: process_state(child.pid) == "T")
        result = call_at(run_dir, "status", "--json")
        status = msgspec.json.decode(result.stdout, type=ServiceStatus)
        assert (result.exit_code, status.ready, status.source) == (1, False, "page")
        assert f"the supervisor (pid {child.pid}) does not answer (it is stopped, state T)" in status.reason
        assert f"frontend (pid {child.pid}) is stopped (state T)" in status.reason
        assert "probe of the frontend: no answer within 0.2 s" in status.reason
        assert status.stats.requests_done == 5
        assert [role.state for role in status.roles] == ["stopped", "stopped"]
        monkeypatch.setattr(versions, "CALL_S", 0.1)
        with pytest.raises(ServiceUnavailable, match="does not report its version: timed out"):
            versions.print_versions(run_dir)
        result = call_at(run_dir, "drain", "--timeout", "0.05")
        assert isinstance(result.exception, DeadlineExceeded), "it does not wait for ever"
        assert result.exception.details["timeout_s"] == 0.05


def test_top_shows_the_window_that_the_service_keeps(lasting: tuple[Path, int]) -> None:
    """Nothing happens while it looks: what is of now has happened since the service's own sample."""
    result = call_at(lasting[0], "top", "--once")
    assert result.exit_code == 0
    assert '"now" is the last' in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("store "))
    assert line.split()[3] == "75%", "the hit rate now"
    assert "\x1b" not in result.stdout


def test_top_of_a_supervisor_that_hangs_has_the_totals(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observe, "HTTP_SLACK_S", 0.1)
    with service(run_dir) as child:
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: process_state(child.pid) == "T")
        result = call_at(run_dir, "top", "--once")
    assert result.exit_code == 1
    assert "does not answer" in result.stdout
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("store "))
    assert line.split()[2:] == ["–", "–", "75%", "30", "40"]


def test_a_supervisor_without_a_socket_is_looked_at_through_the_page_if_that_can_be_read(run_dir: Path) -> None:
    with service(run_dir):
        RunDir(run_dir).http_socket.unlink()
        status = present(look_at(run_dir))
        assert (status.ready, status.source) == (True, "page")
        assert "is just starting, or ending" in status.reason
        assert ANSWERED in status.reason
        (run_dir / "stats.page").unlink()
        status = present(look_at(run_dir))
        assert "stats.page cannot be opened" in status.reason


def test_a_supervisor_that_is_just_starting(run_dir: Path) -> None:
    RunDir(run_dir).create()
    with Seat(RunDir(run_dir)), pytest.raises(ServiceUnavailable, match="just starting"):
        supervisor_pid(run_dir)


# ---- shm


def test_shm_lists_the_living_and_the_dead_and_removes_the_dead() -> None:
    ours = make_ring()
    names = {ours.announcement.data_name, ours.announcement.ctl_name}
    with ours, Process() as writer:
        announced = msgspec.convert(writer.ask("create", 1 << 16), RingAnnouncement)
        theirs = {announced.data_name, announced.ctl_name}
        assert shown() >= {(name, True, os.getpid()) for name in names}
        assert {(name, is_live) for name, is_live, _ in shown()} >= {(name, True) for name in theirs}
        writer.kill()
        assert {(name, is_live) for name, is_live, _ in shown()} >= {(name, False) for name in theirs}
        removed = set(call("shm", "gc").stdout.split()) - {"removed"}
        assert removed >= theirs
        assert not removed & names
        left = {name for name, _, _ in shown()}
        assert names <= left
        assert not theirs & left
        table = call("shm", "ls").stdout
        assert "live" in table
        assert ours.announcement.ctl_name in table


def shown() -> set[tuple[str, bool, int | None]]:
    return {(entry["name"], entry["is_live"], entry["pid"]) for entry in json.loads(call("shm", "ls", "--json").stdout)}


def test_shm_says_what_a_segment_is_for() -> None:
    with make_ring() as ring, make_ring(has_index=True) as store:
        found = {entry["name"]: entry for entry in json.loads(call("shm", "ls", "--json").stdout)}
        program = Path("/proc/self/comm").read_text().strip()
        assert found[ring.announcement.data_name]["process"] == program
        assert f"{os.getpid()} {program}" in call("shm", "ls").stdout
        assert found[ring.announcement.data_name]["purpose"] == "ring"
        assert found[store.announcement.data_name]["purpose"] == "store"


def test_shm_passes_over_what_others_plant() -> None:
    with planted() as names:
        entries = call("shm", "ls", "--json")
        assert entries.exit_code == 0
        assert not names & {entry["name"] for entry in json.loads(entries.stdout)}
        assert call("shm", "gc").exit_code == 0


# ---- drain and flush


def test_drain_ends_the_service_and_waits_for_its_end(run_dir: Path) -> None:
    with service(run_dir) as child:
        result = call_at(run_dir, "drain")
        assert result.exit_code == 0
        assert result.stdout.startswith("drained in ")
        assert child.wait(DEADLINE_S) == 0
    assert not RunDir(run_dir).http_socket.exists()


@pytest.mark.parametrize(("option", "is_new_epoch"), [([], False), (["--epoch"], True)])
def test_flush_says_whether_the_weights_have_changed(run_dir: Path, option: list[str], is_new_epoch: bool) -> None:
    def reply(message: FromClient) -> list[ToClient]:
        return [Flushed(message.request_id)] if isinstance(message, Flush) else []

    with (
        fake_service(run_dir, reply) as received,
        Seat(RunDir(run_dir)),
        contextlib.closing(NamedSocket(RunDir(run_dir).http_socket, 1).socket),
    ):
        result = call_at(run_dir, "flush", *option)
    assert result.exit_code == 0, result.exception
    assert result.stdout.startswith("flushed")
    assert [message.new_epoch for message in received if isinstance(message, Flush)] == [is_new_epoch]


# ---- how light they are


def test_verbs_load_neither_torch_nor_the_server(lasting: tuple[Path, int]) -> None:
    program = (
        "import sys, typer\nfrom mmcached.cli.admin import verbs\n"
        "app = typer.Typer(); verbs.register(app)\n"
        f"try: app(['status', '--run-dir', {str(lasting[0])!r}])\n"
        "except SystemExit as error: print(error.code)\n"
        "print(sorted({'torch', 'prometheus_client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["0", "[]"]
