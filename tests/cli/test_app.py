"""The command line as its users and the supervisor call it; in a process of its own where the process matters."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from itertools import product
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from mmcached.cli import main
from mmcached.cli.config.fields import SETTINGS
from mmcached.cli.config.texts import INTERNAL, describe
from mmcached.wire.config import ServiceConfig

TIMEOUT_S = 60.0

FILE = """
world_size = 3
max_image_bytes = "1MiB"
drain_timeout_s = "500ms"

[model]
hidden_size = 32
seed = 5
"""
ENVIRONMENT = {"MMC_WORLD_SIZE": "4", "MMC_MODEL__SEED": "6", "MMC_CRASH_AT": "put.mid_payload:999"}
FLAGS = ["--model.seed", "7", "--mm-processor-cache-gb", "64MiB", "--no-enable-prefix-caching"]

EXPECTED = {
    "world_size": (4, "environment MMC_WORLD_SIZE"),
    "max_image_bytes": (1 << 20, "file {file}"),
    "drain_timeout_s": (0.5, "file {file}"),
    "model.hidden_size": (32, "file {file}"),
    "model.seed": (7, "command line --model.seed"),
    "mm_processor_cache_gb": (1 / 16, "command line --mm-processor-cache-gb"),
    "enable_prefix_caching": (False, "command line --no-enable-prefix-caching"),
    "block_size": (16, "default"),
}


Ended = subprocess.CompletedProcess[str]


def mmcached(*arguments: str, **environment: str) -> Ended:
    """Run the command line in this process, with no MMC_ variables but the given ones, and a wide terminal."""
    out, err = io.StringIO(), io.StringIO()
    before = signal.getsignal(signal.SIGINT)  # a command line ends with its process, and leaves it set for that
    with (
        mock.patch.dict(os.environ, environment_with(environment), clear=True),
        mock.patch.object(sys, "argv", ["mmcached", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    signal.signal(signal.SIGINT, before)
    return Ended(arguments, int(ended.value.code or 0), out.getvalue(), err.getvalue())


def mmcached_alone(*arguments: str, stand_in: str = "", **environment: str) -> Ended:
    """Run it in a child, after the statements that put a stand-in in the place of what a verb hands over to."""
    code = f"import sys\n{stand_in}\nfrom mmcached.cli import main\nsys.argv[0] = 'mmcached'\nmain()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment_with(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


def environment_with(changes: dict[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MMC_")}
    return inherited | {"COLUMNS": "400", "TERM": "dumb"} | changes


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(FILE)
    return path


def test_config_show_says_where_each_value_comes_from(file: Path) -> None:
    shown = mmcached("config", "show", "--origin", "--config", str(file), *FLAGS, **ENVIRONMENT)
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.removeprefix("# ").split(" = ", 1) for line in shown.stdout.splitlines())
    assert list(lines) == [path for path in SETTINGS if path not in INTERNAL]
    for path, (value, origin) in EXPECTED.items():
        text, _, said = lines[path].partition("#")
        assert json.loads(text) == value
        assert said.strip() == origin.format(file=file)


def test_config_show_describes_every_setting() -> None:
    assert [path for path in SETTINGS if not describe(path)] == [], "add it to config_texts.py"
    shown = mmcached("config", "show", "--all").stdout
    assert len(shown.splitlines()) == len(SETTINGS)
    assert all(line.partition("  # ")[2] for line in shown.splitlines())
    assert "step_timeout_s = 60.0" in shown
    assert "a longer step ends its group of engine and workers [seconds]" in shown


def test_help_and_version_are_where_they_are_looked_for() -> None:
    version = mmcached("version").stdout
    assert mmcached("--version").stdout == version
    for verb in ([], ["serve"], ["config", "show"], ["flush"]):
        shown = mmcached(*verb, "-h")
        assert shown.returncode == 0
        assert "-h, --help" in shown.stdout
        assert "<bool>" not in shown.stdout


def test_config_show_is_a_file_that_gives_the_same_configuration(file: Path, tmp_path: Path) -> None:
    shown = mmcached("config", "show", "--config", str(file), "--http-host", 'a"b\\c', *FLAGS, **ENVIRONMENT)
    assert shown.returncode == 0, shown.stderr
    assert tomllib.loads(shown.stdout)["model"]["seed"] == 7
    (tmp_path / "again.toml").write_text(shown.stdout)
    assert mmcached("config", "show", "--config", str(tmp_path / "again.toml")).stdout == shown.stdout


def test_config_show_json_is_a_service_configuration(file: Path) -> None:
    shown = mmcached("config", "show", "--json", "--config", str(file), *FLAGS, **ENVIRONMENT)
    assert shown.returncode == 0, shown.stderr
    config = msgspec.json.decode(shown.stdout, type=ServiceConfig)
    assert (config.world_size, config.model.seed, config.enable_prefix_caching) == (4, 7, False)
    both = mmcached("config", "show", "--json", "--origin", "--config", str(file), *FLAGS, **ENVIRONMENT)
    answer = json.loads(both.stdout)
    assert msgspec.convert(answer["config"], ServiceConfig) == config
    assert answer["origins"]["world_size"] == "environment MMC_WORLD_SIZE"
    assert answer["origins"].keys() == SETTINGS.keys()


ERRORS: dict[str, tuple[list[str], dict[str, str], str]] = {
    "unknown flag": (
        ["--wrold-size", "3"],
        {},
        "--wrold-size = '3': unknown setting (command line); did you mean --world-size?",
    ),
    "no number": (
        ["--workers", "two"],
        {},
        "world_size = 'two': must be a whole number (command line --workers)",
    ),
    "out of range": (
        [],
        {"MMC_WORLD_SIZE": "99"},
        "world_size = 99: must be between 0 and 16 (environment MMC_WORLD_SIZE)",
    ),
    "no workers": (["--workers", "0"], {}, "world_size = 0: must be at least 1: the demo generates"),
}


@pytest.mark.parametrize(
    ("verb", "error"),
    # One for each of the others: they read their settings as `config show` does.
    [
        *product(["config show"], ["unknown flag", "no number", "out of range"]),
        ("serve", "out of range"),
        ("demo", "unknown flag"),
        ("demo", "no workers"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(verb: str, error: str, tmp_path: Path) -> None:
    arguments, environment, line = ERRORS[error]
    run = mmcached_alone if verb == "serve" else mmcached
    ended = run(*verb.split(), *arguments, XDG_RUNTIME_DIR=str(tmp_path), **environment)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr == f"mmcached: config_error: {line}\n"
    assert list(tmp_path.iterdir()) == [], "nothing was started"


@pytest.mark.parametrize(
    ("status", "arguments", "reason"),
    [
        (2, ["demo", "--images", "{folder}"], "holds no file that ends in one of .png"),
        (2, ["demo", "--encoder", "{folder}"], "config.json': cannot be read"),
        (2, ["demo", "--model", "{folder}"], "config.json': cannot be read"),
        (2, ["serve", "--run-dir", "{folder}/s", "--encoder.kind", "hf"], "must be the folder of a checkpoint"),
        (3, ["serve", "--run-dir", "{file}"], "must be a directory"),
        (3, ["serve", "--run-dir", "/proc/mmcached"], "cannot be made"),
        (3, ["status", "--run-dir", "{file}"], "must be a directory"),
        (3, ["drain", "--run-dir", "{file}"], "must be a directory"),
        (3, ["keys", "--run-dir", "{file}"], "must be a directory"),
        (3, ["info", "--run-dir", "{file}"], "must be a directory"),
        (3, ["version", "--run-dir", "{file}"], "must be a directory"),
        (3, ["ping", "--run-dir", "{folder}/nothing"], "no service in"),
        (1, ["serve", "--run-dir", "{folder}/s", "--store-gb", "4096"], "the store needs"),
    ],
)
def test_what_cannot_be_is_one_line_and_the_status_of_its_kind(
    status: int, arguments: list[str], reason: str, run_dir: Path
) -> None:
    """And said at once: no role is started for it."""
    file = run_dir / "file"
    file.touch()
    run = mmcached_alone if arguments[0] == "serve" else mmcached
    ended = run(*[each.format(file=file, folder=run_dir) for each in arguments])
    assert ended.returncode == status
    assert reason in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_wrong_option_is_status_2_in_every_verb() -> None:
    """Of those that read settings, which parse their own flags, as of those that `click` parses."""
    assert mmcached_alone("serve", "--wrold-size", "1").returncode == 2
    for verb in (["demo"], ["config", "show"], ["ping"], ["keys"], ["shm", "ls"], ["bench"]):
        assert mmcached(*verb, "--wrold-size", "1").returncode == 2, verb


def test_a_service_that_does_not_become_ready_is_status_1() -> None:
    """The same error of a verb, which has found no service, is 3."""
    raising = "from mmcached.wire.errors import ServiceUnavailable; raise ServiceUnavailable('not ready')"
    ended = mmcached_alone("serve", "--run-dir", "/tmp/x", stand_in=SUPERVISOR.replace("return 3", raising))
    assert (ended.returncode, ended.stderr) == (1, "mmcached: service_unavailable: not ready\n")


def test_a_verb_s_own_flag_is_proposed() -> None:
    ended = mmcached("config", "show", "--orign")
    assert ended.returncode == 2
    assert "did you mean --origin?" in ended.stderr


def test_run_dir_of_the_environment_is_for_every_verb_and_the_flag_overrules_it(run_dir: Path) -> None:
    here = {"MMC_RUN_DIR": str(run_dir / "here")}
    for verb in (["ping"], ["status"], ["top"], ["keys"], ["inspect", "x"], ["info", "store"], ["drain"], ["flush"]):
        said = mmcached(*verb, **here)
        assert (said.returncode, str(run_dir / "here") in said.stderr) == (3, True), verb
        assert str(run_dir / "there") in mmcached(*verb, "--run-dir", str(run_dir / "there"), **here).stderr
    prints = SUPERVISOR.replace("msgspec.json.encode(config).decode()", "str(run_dir)")
    served = mmcached_alone("serve", stand_in=prints, **here)
    assert (served.returncode, served.stdout.split()) == (3, [str(run_dir / "here")]), served.stderr
    assert mmcached("config", "show", **here).returncode == 0, "it is no setting, and no misspelt one"


SUPERVISOR = """
import mmcached.cli.serve.supervisor
class Supervisor:
    summary = ""
    def __init__(self, run_dir, config, stop, working, manager):
        import msgspec
        sys.stdout.write(msgspec.json.encode(config).decode())
    def run(self):
        return 3
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
mmcached.cli.serve.supervisor.Supervisor = Supervisor
"""
DEMO = """
import mmcached.cli.demo.run
def run_demo(config, *, images, num_users, num_turns):
    import msgspec
    sys.stdout.write(msgspec.json.encode(config).decode())
    return 3 if (images, num_users, num_turns) == (None, 5, 4) else 4
mmcached.cli.demo.run.run_demo = run_demo
"""


@pytest.mark.parametrize(
    ("stand_in", "own"), [(SUPERVISOR, ["serve", "--run-dir", "/tmp/x"]), (DEMO, ["demo", "--users", "5"])]
)
def test_serve_and_demo_take_every_layer(stand_in: str, own: list[str], file: Path) -> None:
    """The own flags may stand between the settings."""
    settings = ["--config", str(file), "--device", "cpu", *FLAGS]
    words = [own[0], *FLAGS[:2], *own[1:], *settings, "--workers=1"]
    ended = mmcached_alone(*words, stand_in=stand_in, **ENVIRONMENT)
    assert ended.returncode == 3, ended.stderr
    config = msgspec.json.decode(ended.stdout, type=ServiceConfig)
    assert (config.device, config.world_size) == ("cpu", 1)
    assert (config.model.seed, config.model.hidden_size, config.max_image_bytes) == (7, 32, 1 << 20)


MODULES = {
    "frontend": "mmcached.frontend.server",
    "second-level": "mmcached.second_level.process",
    "engine": "mmcached.engine.server.server",
    "worker": "mmcached.worker.server",
}
ROLE = """
import mmcached.cli.role
import {module} as server
def run(*arguments):
    print(*(getattr(each, "__name__", each) for each in arguments))
    print(*sys.modules)
    return 3
server.main = run
"""


@pytest.mark.parametrize(
    ("role", "arguments", "handed"),
    [
        ("frontend", [], "ModelGateway"),
        ("second-level", [], ""),
        ("engine", ["--index", "1"], "1"),
        ("worker", ["--rank", "2", "--index", "1"], "1 2"),
    ],
)
def test_a_role_reads_the_run_directory_alone_and_imports_little(
    role: str, arguments: list[str], handed: str, run_dir: Path
) -> None:
    """A misspelt variable was the supervisor's to refuse; a role would only die of it at its restart."""
    ServiceConfig(log_level="error").save(run_dir / "config.json")
    stand_in, wrong = ROLE.format(module=MODULES[role]), {"MMC_WROLD_SIZE": "1", "MMC_WORLD_SIZE": "99"}
    ended = mmcached_alone(role, "--run-dir", str(run_dir), *arguments, stand_in=stand_in, **wrong)
    assert ended.returncode == 3, ended.stderr
    got, modules = ended.stdout.splitlines()
    assert got.split() == [str(run_dir), *handed.split()]
    imported = {module.partition(".")[0] for module in modules.split()}
    assert "mmcached" in imported
    assert not {"pydantic", "prometheus_client", "rich", "typer"} & imported


@pytest.mark.parametrize("role", [["frontend"], ["engine"], ["worker", "--rank", "0"]], ids=lambda role: role[0])
def test_a_role_without_a_service_says_so(role: list[str], run_dir: Path) -> None:
    ended = mmcached_alone(*role, "--run-dir", str(run_dir))
    assert ended.returncode == 1
    assert ended.stderr.startswith("mmcached: config_error: config = ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [[], ["--run-di", "/tmp/x"], ["--run-dir", "/tmp/x", "--world-size", "2"]], ids=" ".join
)
def test_a_role_takes_no_settings(arguments: list[str]) -> None:
    ended = mmcached("frontend", *arguments)
    assert ended.returncode == 2
    assert ended.stderr.startswith("usage: mmcached frontend")


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["serve", "--help"]], ids=" ".join)
def test_what_starts_nothing_loads_neither_torch_nor_the_logs(arguments: list[str]) -> None:
    ended = mmcached_alone(*arguments, stand_in="import atexit\natexit.register(lambda: print(*sys.modules))")
    assert ended.returncode == 0, ended.stderr
    modules = ended.stdout.splitlines()[-1].split()
    assert "typer" in modules
    assert not {"torch", "structlog"} & set(modules)
