"""`mmcached demo --vllm` with a stand-in for vLLM's server; with vLLM itself: `tests/hosts/vllm/test_demo.py`."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from mmcached.cli.demo.vllm_run import Situation, report, shares_of_gpus, visible_gpus
from mmcached.cli.demo.vllm_server import Launch, Reply
from mmcached.cli.exit_status import INTERRUPTED, NO_SERVICE, USAGE
from tests.cli import vllm_stand_in
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S, descendants, eventually, is_alive

DEMO = [sys.executable, "-m", "mmcached", "demo", "--vllm"]
FIRST_IS_READY = "start vLLM, first server"
KILLED = """
import sys, time
from pathlib import Path
from mmcached.cli.demo.vllm_server import Launch, running
with running("first server", Launch("works", [], {}), Path(sys.argv[1])):
    print("ready", flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def environment(tmp_path: Path, run_dir: Path) -> dict[str, str]:
    """Of a process that finds the stand-in where vLLM would be, and has a short path for its own files."""
    vllm_stand_in.install(tmp_path)
    run_dir.mkdir(exist_ok=True)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "TMPDIR": str(run_dir)}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """All processes end, also those that have lost their parent: this process adopts them."""
    before = set(descendants(os.getpid()))
    yield
    eventually(
        lambda: list(filter(is_alive, set(descendants(os.getpid())) - before)),
        lambda left: not left,
        "processes that are left",
    )


def run_demo(model: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, "--vllm-model", model],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_vllm_the_error_says_what_to_install() -> None:
    ended = subprocess.run(DEMO, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == USAGE
    assert "vLLM" in ended.stderr
    assert "pip install '.[store,vllm]' in a checkout of mmcached" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_vllm_that_is_too_old_is_refused(tmp_path: Path) -> None:
    vllm_stand_in.install(tmp_path, version="0.29.1")
    ended = run_demo("works", os.environ | {"PYTHONPATH": str(tmp_path)})
    assert ended.returncode == USAGE
    assert "needs vLLM 0.30 or newer, and this is 0.29.1" in ended.stderr


def test_the_table_says_who_has_encoded(environment: dict[str, str]) -> None:
    ended = run_demo("works", environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in ended.stdout.splitlines() if "│" in line]
    assert [(row[0], row[-1]) for row in rows] == [
        ("new, in the first server", "5"),
        ("again, in the first server", "0"),
        ("in the other server", "0"),
        ("in the other server, not shared", "5"),
    ]
    assert "encoder runs for 5 pictures: 5 in the first server, 0 in the other server" in ended.stdout
    assert "the 40 generated tokens" in ended.stdout
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("model", "last_words"), [("ends", "no such model\\x1b[2J"), ("ends-when-asked", "the engine is dead")]
)
def test_the_log_of_a_server_that_ends_is_shown(model: str, last_words: str, environment: dict[str, str]) -> None:
    ended = run_demo(model, environment)
    assert ended.returncode == NO_SERVICE, ended.stdout + ended.stderr
    assert last_words in ended.stderr
    assert "first server" in ended.stderr.splitlines()[-1]
    assert "it ended with status 1; the end of its log is above" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(("signum", "status"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_all_that_was_started(
    signum: int, status: int, environment: dict[str, str], run_dir: Path
) -> None:
    command = ["env", "--default-signal=INT", *DEMO, "--vllm-model", "works"]  # background jobs of a shell ignore it
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith(FIRST_IS_READY):
                demo.send_signal(signum)
        assert demo.stderr is not None
        assert (demo.wait(DEADLINE_S), demo.stderr.read()) == (status, "")
    assert list(run_dir.iterdir()) == []


def test_the_engine_of_a_server_ends_with_a_demo_that_is_killed(environment: dict[str, str], tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "log")], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(descendants(process.pid)) == 2
        process.kill()


def test_options_for_vllm_need_its_switch() -> None:
    words = [sys.executable, "-m", "mmcached", "demo", "--vllm-model", "some-model"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert ended.returncode == USAGE
    assert "--vllm-model = 'some-model'" in ended.stderr


def situations(tokens: str = "ab", runs: int = 0) -> list[Situation]:
    """What was found for one picture; the other server's second row differs as is asked for."""
    new, known = Reply(1.0, ("a", "b"), (-1.0, -2.0)), Reply(0.1, tuple(tokens), (-1.0, -2.0))
    rows = {"new": (new, 1), "again": (new, 0), "found": (known, runs), "alone": (new, 1)}
    return [Situation(name, [reply], [count]) for name, (reply, count) in rows.items()]


@pytest.mark.parametrize(
    ("found", "status", "words"),
    [
        (situations(), 0, "equal in all four rows"),
        (situations(tokens="ac"), 1, "DIFFERENT"),
        (situations(runs=1), 1, "1 in the other server"),
    ],
)
def test_the_status_says_whether_it_was_shared(found: list[Situation], status: int, words: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    assert report(found, console) == status
    assert isinstance(console.file, io.StringIO)
    assert words in console.file.getvalue()


def test_a_tower_that_costs_little_is_said() -> None:
    console = Console(file=io.StringIO(), width=200)
    cheap = [Situation(each.name, [Reply(0.1, ("a",), (-1.0,))], each.encoder_runs) for each in situations()]
    assert report(cheap, console) == 0
    assert isinstance(console.file, io.StringIO)
    assert "encoder is cheap here" in console.file.getvalue()


@pytest.mark.parametrize(
    ("gpus", "options", "devices"),
    [
        ("", [], [None, None]),
        ("7", ["--gpu-memory-utilization", "0.4"], [None, None]),
        ("0,1", [], ["0", "1"]),
        ("5,6,7", [], ["5", "6"]),
        ("0,1,2,3", [], ["0,1", "2,3"]),
    ],
)
def test_two_servers_share_the_gpus(
    gpus: str, options: list[str], devices: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    own = ["--max-model-len", "64"]
    shares = shares_of_gpus(Launch("some-model", own, {}), visible_gpus())
    assert [share.environment.get("CUDA_VISIBLE_DEVICES") for share in shares] == devices
    assert all(share.options == [*options, *own] for share in shares)
