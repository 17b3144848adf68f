"""Draws messages of text and images, always the same ones for a seed."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

SIDES = (56, 112, 168, 224)
"""Of an image, pixels; the largest is the checkpoint's limit."""
MAX_PIXELS = SIDES[-1] ** 2
MAX_IMAGES = 4
WORDS = (
    "what",
    "which",
    "where",
    "is",
    "are",
    "this",
    "there",
    "cat",
    "tree",
    "house",
    "left",
    "right",
    "same",
    "other",
)

Content = list[dict[str, Any]]


@cache
def image(number: int, side: int | None = None) -> dict[str, Any]:
    """Return the part of a message that brings an image; its number decides all of it."""
    draw = np.random.default_rng(number)
    side = int(draw.choice(SIDES)) if side is None else side
    squares = Image.fromarray(draw.integers(0, 256, (7, 7, 3), dtype=np.uint8))
    file = io.BytesIO()
    squares.resize((side, side), Image.Resampling.NEAREST).save(file, "PNG")
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"},
    }


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def messages(count: int, *, seed: int, images: range) -> Iterator[Content]:
    """Yield messages with 0 to 4 of the images each, text before, between or after them."""
    draw = random.Random(seed)
    for _ in range(count):
        parts = [image(draw.choice(images)) for _ in range(draw.randint(0, MAX_IMAGES))]
        parts += [text(" ".join(draw.choices(WORDS, k=draw.randint(1, 24)))) for _ in range(draw.randint(1, 3))]
        draw.shuffle(parts)
        yield parts
