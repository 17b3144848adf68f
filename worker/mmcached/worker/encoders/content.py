"""Digests of tensors, images and plain values: typed and framed, so that different contents have different input."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from blake3 import blake3

from mmcached.shm.store.tensor_bytes import is_tensor, to_bytes


class Content:
    """Digest to which contents are added one by one; several threads pay off only if `is_vast`."""

    def __init__(self, *, is_vast: bool = False) -> None:
        self._digest = blake3(max_threads=blake3.AUTO if is_vast else 1)

    def add(self, name: str, value: Any) -> None:
        """Add a named value: an array, a tensor on any device, bytes, or a JSON value.

        Raises `TypeError` or `ValueError` for other values, `NotCarried` for an unsupported dtype or layout.
        """
        if is_tensor(value):
            (dtype, shape), flat = to_bytes(value if isinstance(value, np.ndarray) else value.detach().cpu())
            self._frame(name, f"{dtype}{list(shape)}", flat)
        elif isinstance(value, bytes):
            self._frame(name, "bytes", np.frombuffer(value, np.uint8))
        else:
            text = json.dumps(value, sort_keys=True, allow_nan=False).encode()
            self._frame(name, "json", np.frombuffer(text, np.uint8))

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def _frame(self, name: str, kind: str, flat: Any) -> None:
        head = json.dumps([name, kind, flat.nbytes]).encode()
        self._digest.update(len(head).to_bytes(4, "little") + head)
        self._digest.update(flat.data)


def add_image(content: Content, image: Any) -> None:
    """Add an image as a processor takes it: an array, a tensor, or a Pillow image, which is decoded if necessary.

    Raises `TypeError` for others, such as a URL, whose content may change.
    """
    if is_tensor(image):
        content.add("array" if isinstance(image, np.ndarray) else "tensor", image)
        return
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise TypeError(f"not an image with readable content: {type(image).__name__}")
    pixels = image.tobytes()  # decodes it, and so completes `info`
    transparency = image.info.get("transparency")
    about = [image.mode, list(image.size), transparency.hex() if isinstance(transparency, bytes) else transparency]
    content.add("image", about)
    content.add("palette", bytes(image.palette.getdata()[1]) if image.palette is not None else b"")
    content.add("pixels", pixels)
