"""Writes down what a vLLM API process does with media: decodes of files, and runs of the model's processor.

`--middleware tests.hosts.vllm.api_count.ApiCount` brings it into the API process, and the variable `API_COUNT_FILE`
says into which file it writes. As a middleware it does nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vllm.multimodal import video
from vllm.multimodal.media.image import ImageMediaIO
from vllm.multimodal.processing import processor

from tests.hosts.vllm.servers import API_FILE


def _note(what: str) -> None:
    with Path(os.environ[API_FILE]).open("a") as file:
        file.write(f"{what}\n")


def _count(owner: Any, method: str, what: str) -> None:
    whole = getattr(owner, method)

    def counting(*args: Any, **kwargs: Any) -> Any:
        _note(what)
        return whole(*args, **kwargs)

    setattr(owner, method, counting)


_count(processor.BaseMultiModalProcessor, "_call_hf_processor", "processor")
_count(ImageMediaIO, "load_bytes", "image")
_count(video, "decode_video", "video")


class ApiCount:
    """A middleware that passes everything on."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, *args: Any) -> None:
        await self._app(*args)
