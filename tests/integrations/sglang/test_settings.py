"""What the environment asks for, and what it cannot ask for."""

from __future__ import annotations

import sys

import pytest

from mmcached.integrations.sglang import register
from mmcached.integrations.sglang.plugin import check_version
from mmcached.integrations.sglang.settings import SglangSettings
from mmcached.wire.errors import ConfigError


def test_nothing_is_asked_where_nothing_is_said() -> None:
    assert SglangSettings.read({}) == SglangSettings(frozenset(), None, "", 256 << 20, 2048 << 20)


def test_all_that_can_be_said() -> None:
    said = {
        "MMCACHED_SGLANG": "engine_cache, embedding_store",
        "MMCACHED_RUN_DIR": "/run/x",
        "MMCACHED_NAMESPACE": " m@1 ",
        "MMCACHED_MAX_SAVE_MB": "2",
        "MMCACHED_MAX_PINNED_MB": "0",
    }
    asked = frozenset({"engine_cache", "embedding_store"})
    assert SglangSettings.read(said) == SglangSettings(asked, "/run/x", "m@1", 2 << 20, 0)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MMCACHED_SGLANG", "1"),
        ("MMCACHED_SGLANG", "cache"),
        ("MMCACHED_MAX_SAVE_MB", "-1"),
        ("MMCACHED_MAX_PINNED_MB", "1g"),
    ],
)
def test_what_cannot_be_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable} = '{value}'"):
        SglangSettings.read({variable: value})


def test_registering_does_nothing_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MMCACHED_SGLANG", raising=False)
    before = set(sys.modules)
    register()
    assert set(sys.modules) == before


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1", "0.5.24rc1", "0.5.100"])
def test_a_version_that_it_is_for(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.5.22", "0.4.99", "0.6", "0.6.0rc1", "1.0", "unknown", ""])
def test_another_version_is_refused_with_both_numbers(version: str) -> None:
    with pytest.raises(ConfigError, match=rf"sglang {version}.*0\.5\.23 or later, below 0\.6"):
        check_version(version)
