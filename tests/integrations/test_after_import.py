"""A module is changed when its program imports it, after its own code, and an error of the change stops no import."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmcached.integrations.after_import import after_import


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that no one has imported."""
    (tmp_path / "some_host").mkdir()
    (tmp_path / "some_host" / "engine.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    yield "some_host.engine"
    sys.meta_path[:] = finders
    for name in ("some_host", "some_host.engine"):
        sys.modules.pop(name, None)


def double(module: Any) -> None:
    module.value *= 2


def test_a_module_is_changed_once_it_is_imported(host: str) -> None:
    after_import(host, double)
    assert host not in sys.modules
    module = importlib.import_module(host)
    assert module.value == 2
    assert importlib.import_module(host) is module
    assert module.value == 2


def test_a_module_that_is_there_is_changed_at_once(host: str) -> None:
    module = importlib.import_module(host)
    after_import(host, double)
    assert module.value == 2


def test_two_changes_are_made(host: str) -> None:
    after_import(host, double)
    after_import(host, double)
    assert importlib.import_module(host).value == 4


def test_a_program_may_look_for_the_module_before(host: str) -> None:
    after_import(host, double)
    for _ in range(2):
        assert importlib.util.find_spec(host) is not None
    assert importlib.import_module(host).value == 2


def test_a_module_that_is_loaded_a_second_time_is_changed_once(host: str) -> None:
    changed: list[Any] = []
    after_import(host, changed.append)
    found = importlib.util.find_spec(host)
    assert found is not None
    assert found.loader is not None
    module = importlib.import_module(host)
    found.loader.exec_module(importlib.util.module_from_spec(found))
    assert changed == [module]


def test_a_module_that_failed_is_changed_by_the_next_import(host: str, tmp_path: Path) -> None:
    file = tmp_path / "some_host" / "engine.py"
    code = file.read_text()
    after_import(host, double)
    file.write_text("raise ImportError\n")
    with pytest.raises(ImportError):
        importlib.import_module(host)
    file.write_text(code)
    assert importlib.import_module(host).value == 2


def test_an_error_of_a_change_stops_no_import(host: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(module: Any) -> None:
        raise AttributeError("no such class")

    with caplog.at_level(logging.ERROR, logger="mmcached"):
        after_import(host, fail)
        assert importlib.import_module(host).value == 1
    assert "some_host.engine is not changed" in caplog.text


def test_other_modules_are_imported_as_ever(host: str) -> None:
    after_import("some_host.missing", double)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("some_host.missing")
    assert importlib.import_module(host).value == 1
