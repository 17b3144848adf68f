"""The password of a URL is in the file that the roles read, and in nothing that anybody prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmcached.cli.config.settings import load_config
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import ConfigError
from tests.cli.config.test_init import call

URL, SHOWN = "redis://me:hunter2@cache:6379/1", "redis://me:***@cache:6379/1"


@pytest.mark.parametrize("more", [(), ("--origin",), ("--all",), ("--json",), ("--json", "--origin")], ids=" ".join)
def test_a_configuration_is_shown_without_it(more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMC_STORE_L2", URL)
    shown = call("config", "show", *more)
    assert (shown.exit_code, SHOWN in shown.output, "hunter2" in shown.output) == (0, True, False)


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--store-12", URL], {}),
        ([URL], {}),
        (["--store-l2", URL, "--store-gb", URL], {}),
        (["--store-gb", URL], {}),
        (["--no-keep-cache=" + URL], {}),
        ([], {"MMC_STORE_12": URL}),
        ([], {"MMC_STORE_GB": URL}),
        (["--store-gb=0"], {"MMC_STORE_L2": URL}),
        ([], {"MMC_STORE_L2": "redis://me:hunter2\udcff@cache"}),
    ],
)
def test_what_is_wrong_is_said_without_it(arguments: list[str], environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(file=None, environment=environment, arguments=arguments)
    assert "hunter2" not in f"{refused.value} {refused.value.details}"


def test_a_file_that_is_wrong_is_named_without_it(tmp_path: Path) -> None:
    file = tmp_path / "mmcached.toml"
    for text in (f'store_12 = "{URL}"', f'store_gb = "{URL}"', f'limits = "{URL}"', f'store_l2 = ["{URL}"]'):
        file.write_text(text)
        with pytest.raises(ConfigError) as refused:
            load_config(file=file, environment={}, arguments=())
        assert "hunter2" not in str(refused.value), text


def test_roles_are_told_it_and_a_digest_does_not_give_it_away(tmp_path: Path) -> None:
    config = ServiceConfig(store_l2=URL)
    config.save(tmp_path / "config.json")
    assert json.loads((tmp_path / "config.json").read_text())["store_l2"] == URL
    assert ServiceConfig.load(tmp_path / "config.json") == config
    assert config.digest() == ServiceConfig(store_l2=URL.replace("hunter2", "other")).digest()
    assert config.digest() != ServiceConfig(store_l2="redis://elsewhere").digest()
