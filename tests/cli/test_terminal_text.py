"""What a user has typed, and what lies in files, is never a command to the terminal on which it is shown."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from mmcached.cli.config.toml import toml_value
from tests.cli.test_app import mmcached

SIGNS = "\x1b[2J\x9b[red]\u202e\x7f"
VERBS = ["ping", "status", "top --once", "info", "keys", "inspect x", "drain", "flush", "doctor", "version"]


def said(*arguments: str) -> str:
    """Run the command line in this process; return all that it has printed."""
    ended = mmcached(*arguments)
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("verb", VERBS)
def test_the_path_of_a_run_directory(verb: str, run_dir: Path) -> None:
    """Where no service is, where something else is, and where one of another version has left its configuration."""
    nobody, file, other = (run_dir / f"{name}{SIGNS}" for name in ("none", "file", "other"))
    file.touch()
    other.mkdir(mode=0o700)
    (other / "config.json").write_text(f'{{"protocol_version": "{SIGNS[4:]}"}}')
    for path in (nobody, file, other):
        text = said(*verb.split(), "--run-dir", str(path))
        assert text.replace("\n", "").isprintable()
        assert text


@pytest.mark.parametrize("form", [[], ["--json"], ["--origin"]])
def test_a_setting(form: list[str], tmp_path: Path) -> None:
    file = tmp_path / f"f{SIGNS}.toml"
    file.write_text(f"http_host = {toml_value(SIGNS)}")
    text = said("config", "show", "--config", str(file), *form)
    assert text.replace("\n", "").isprintable()
    assert "\\u009b[red]\\u202e" in text
    if not form:
        assert tomllib.loads(text)["http_host"] == SIGNS


def test_a_wrong_setting(tmp_path: Path) -> None:
    for name, value in ((SIGNS, "1"), ("--workers", SIGNS), ("--config", f"{tmp_path}/{SIGNS}")):
        text = said("config", "show", name, value)
        assert text.startswith("mmcached: config_error: ")
        assert text.count("\n") == 1
        assert text[:-1].isprintable()


@pytest.mark.parametrize("value", ["a\x7f\x9bb", "\U000e0001", "\ud7ff\ue000", 'quoted "\\', "\n\t"])
def test_toml_gives_the_same_text_again(value: str) -> None:
    written = toml_value(value)
    assert written.isprintable()
    assert tomllib.loads(f"x = {written}") == {"x": value}
