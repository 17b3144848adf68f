"""Writes down each picture that an SGLang server gives to the image processor, whatever a plugin says about it.

A plugin itself: `provide` makes a folder that brings it into each process with that folder on its path.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

FILE = "PROCESSOR_COUNT_FILE"
_METADATA = "Metadata-Version: 2.1\nName: processor-count\nVersion: 1\n"
_ENTRY_POINTS = "[sglang.srt.plugins]\nprocessor_count = tests.hosts.sglang.processor_count:register\n"


def provide(folder: Path) -> dict[str, str]:
    """Return the environment of a server that notes into a file of the folder."""
    distribution = folder / "processor_count-1.dist-info"
    distribution.mkdir(parents=True, exist_ok=True)
    (distribution / "METADATA").write_text(_METADATA)
    (distribution / "entry_points.txt").write_text(_ENTRY_POINTS)
    (folder / "processed").touch()
    path = os.pathsep.join(part for part in (str(folder), os.getcwd(), os.environ.get("PYTHONPATH")) if part)
    return {"PYTHONPATH": path, FILE: str(folder / "processed")}


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
