"""The file that `config init` writes says every default, changes nothing, and is taken when its lines are."""

from __future__ import annotations

import re
import tomllib
from operator import attrgetter
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from mmcached.cli.config import show
from mmcached.cli.config.fields import DEFAULT, SETTINGS
from mmcached.cli.config.settings import load_config
from mmcached.cli.config.texts import INTERNAL, describe
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError


def call(*arguments: str) -> Result:
    app = typer.Typer()
    show.register(app)
    return CliRunner().invoke(app, arguments)


def test_as_written_it_leaves_every_default_and_with_every_line_taken_it_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "mmcached.toml"
    written = call("config", "init", str(file))
    assert written.exit_code == 0
    text = file.read_text()
    assert call("config", "init", "-").stdout == text
    as_written = load_config(file=file, environment={}, arguments=())
    assert as_written.config == ServiceConfig()
    assert set(as_written.origins.values()) == {DEFAULT}, "what nobody has changed stays a default"
    taken = re.sub(r"^#(?! )", "", text, flags=re.MULTILINE)
    file.write_text(taken)
    loaded = load_config(file=file, environment={}, arguments=())
    assert loaded.config == ServiceConfig()
    given = {path for path in SETTINGS if loaded.origins[path] != DEFAULT}
    defaults = {path for path in SETTINGS if attrgetter(path)(ServiceConfig()) is not None}
    assert given == defaults - INTERNAL
    shown = tomllib.loads(call("config", "show", "--config", str(file)).stdout)
    assert shown == tomllib.loads(call("config", "show").stdout)
    assert shown["store_gb"] == ServiceConfig().store_gb
    for path in defaults - INTERNAL:
        assert f"# {describe(path)}" in text


def test_it_overwrites_nothing_unless_told_to(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("world_size = 3\n")
    refused = call("config", "init", str(file))
    assert isinstance(refused.exception, ConfigError)
    assert "--force" in str(refused.exception)
    assert file.read_text() == "world_size = 3\n"
    assert call("config", "init", "--force", str(file)).exit_code == 0
    assert "#world_size = 2" in file.read_text()


@pytest.mark.parametrize(("name", "limit"), [("x.json", "must end in .toml"), ("no/x.toml", "cannot be written")])
def test_where_it_cannot_be_written(tmp_path: Path, name: str, limit: str) -> None:
    refused = call("config", "init", str(tmp_path / name))
    assert isinstance(refused.exception, ConfigError)
    assert limit in str(refused.exception)
