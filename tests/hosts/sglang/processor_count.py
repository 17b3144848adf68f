"""Writes down each picture that an SGLang server gives to the image processor, whatever a plugin says about it.

A plugin itself: `provide` makes a folder that brings it into each process with that folder on its path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.hosts.sglang import plugin_folder

FILE = "PROCESSOR_COUNT_FILE"


def provide(folder: Path) -> dict[str, str]:
    """Return the environment of a server that notes into a file of the folder."""
    return plugin_folder.provide(folder, __name__, FILE, "processed")


def num_processed(folder: Path) -> int:
    """Return the number of pictures processed so far."""
    return len((folder / "processed").read_text().split())


def register() -> None:
    from transformers.image_processing_utils import BaseImageProcessor

    call = BaseImageProcessor.__call__

    def noted(self: Any, images: Any, *values: Any, **named: Any) -> Any:
        with Path(os.environ[FILE]).open("a") as file:
            file.writelines("1\n" for _ in (images if isinstance(images, list) else [images]))
        return call(self, images, *values, **named)

    BaseImageProcessor.__call__ = noted
