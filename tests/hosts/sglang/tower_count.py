"""Writes down what an SGLang engine gives to its vision tower, whatever a plugin says about it.

A plugin itself: `provide` makes a folder that brings it into each process with that folder on its path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.hosts.sglang import plugin_folder

FILE = "TOWER_COUNT_FILE"


def provide(folder: Path) -> dict[str, str]:
    """Return the environment of a server that notes into a file of the folder."""
    return plugin_folder.provide(folder, __name__, FILE, "encoded")


def encoded(folder: Path) -> list[str]:
    """Return the hashes of all items encoded so far, one for each time."""
    return (folder / "encoded").read_text().split()


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.managers.mm_schedule._move_items_to_device", _note, HookType.BEFORE)


def _note(items: list[Any], *others: Any) -> None:
    # Called with the items that no cache has, right before the tower is.
    with Path(os.environ[FILE]).open("a") as file:
        file.writelines(f"{item.hash}\n" for item in items)
