"""Says what Transformers alone generates from a prompt with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import torch
import transformers
from PIL import Image

from tests.hosts.transformers.models import IMAGE

ROWS = 16
"""Embeddings of a picture of the small LLaVA checkpoint."""


class PicturesAlone:
    """The small LLaVA checkpoint in this process."""

    def __init__(self, folder: Path) -> None:
        self._processor = transformers.AutoImageProcessor.from_pretrained(folder)
        self._model = transformers.LlavaForConditionalGeneration.from_pretrained(folder).eval()

    def generate(self, prompt: Sequence[int], files: Sequence[bytes], max_tokens: int) -> list[int]:
        """Return the tokens that `generate` continues a prompt with; it has one placeholder for each file."""
        expanded = [token for one in prompt for token in [one] * (ROWS if one == IMAGE else 1)]
        inputs = {"input_ids": torch.tensor([expanded])}
        if files:
            pictures = [Image.open(BytesIO(file)).convert("RGB") for file in files]
            pixels = [self._processor(images=picture, return_tensors="pt")["pixel_values"] for picture in pictures]
            inputs["pixel_values"] = torch.cat(pixels)
        output = self._model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False)
        return [int(token) for token in output[0, len(expanded) :]]
