"""Makes digests of tensors, images and plain values: typed and framed, so that different contents never look alike."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from blake3 import blake3

from mmcached.shm.store.tensor_bytes import is_tensor, to_bytes


class Content:
    """A digest to which contents are added one by one.

    Args:
        is_vast: whether it is worth while to wake other threads: not for an image, if they are busy.
    """

    def __init__(self, *, is_vast: bool = False) -> None:
        self._digest = blake3(max_threads=blake3.AUTO if is_vast else 1)

    def add(self, name: str, value: Any) -> None:
        """Add a named value: an array, a tensor of any device, bytes, or a JSON value.

        Raises:
            TypeError, ValueError: it is something else.
            NotCarried: a tensor of a dtype or layout that is not known.
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
        """Return what all of them together are called: 64 hex digits."""
        return self._digest.hexdigest()

    def _frame(self, name: str, kind: str, flat: Any) -> None:
        head = json.dumps([name, kind, flat.nbytes]).encode()
        self._digest.update(len(head).to_bytes(4, "little") + head)
        self._digest.update(flat.data)


def add_image(content: Content, image: Any) -> None:
    """Add an image as a processor takes it: an array, a tensor, or one of Pillow's, which is decoded if it was not.

    Raises:
        TypeError: it is something else, such as a URL, whose content may change.
    """
    if is_tensor(image):
        content.add("array" if isinstance(image, np.ndarray) else "tensor", image)
        return
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise TypeError(f"no image whose content can be seen: {type(image).__name__}")
    pixels = image.tobytes()  # decodes it, and so completes `info`
    transparency = image.info.get("transparency")
    about = [image.mode, list(image.size), transparency.hex() if isinstance(transparency, bytes) else transparency]
    content.add("image", about)
    content.add("palette", bytes(image.palette.getdata()[1]) if image.palette is not None else b"")
    content.add("pixels", pixels)
