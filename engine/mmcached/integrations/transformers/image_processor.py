"""Gives an image processor of Transformers the images that any process of the host has processed before.

    images ──content of each──> look up all ──> found, or processed alone by one process ──put together──> batch

What is put together is what the processor itself returns, bit for bit: that is known of the processors in `ONE_BY_ONE`,
which treat the images of a batch one by one. Calls of others, and those that pad several images to one size, go to
the processor as they are and count as bypassed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.integrations.transformers.records import find_or_make
from mmcached.shm.store.tensor_bytes import NotCarried
from mmcached.worker.encoders.content import Content, add_image

Arrays = dict[str, npt.NDArray[Any]]
"""What the processor gives for one image, by name; the first dimension is what batches are put together along."""

ONE_BY_ONE = frozenset(
    f"{name}ImageProcessor{backend}"
    for name in ("CLIP", "Siglip", "Llava", "Qwen2VL", "Gemma3", "GotOcr2")
    for backend in ("", "Pil")
)
"""Classes of Transformers that treat the images of a batch one by one; a test looks at each."""
_TYING = ("do_pad", "pad_size")
"""Settings with which they do not."""
_PACKAGES = ("transformers", "torch", "torchvision", "numpy", "pillow")


class CachedImageProcessor:
    """An image processor that is asked as the one that it wraps, and has its attributes.

    Beside arrays, tensors and Pillow's images it takes encoded files, as `bytes` or `Path`. Such a one gives what
    `processor(load_image(path))` gives, and is not decoded if it is found.

    Args:
        processor: of Transformers; it may go on to be changed.
        timeout_s: how long to wait for another process that processes an image; then it is processed here.
    Attributes:
        num_images: that were asked for, not counting bypassed calls.
        num_processed: how many of them were processed here; all others were found.
        num_bypassed: calls that went to the processor as they were.
    """

    def __init__(self, processor: Any, client: Client, *, timeout_s: float = 30.0) -> None:
        self.num_images = self.num_processed = self.num_bypassed = 0
        self.processor = processor
        self._client = client
        self._timeout_s = timeout_s
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name == "processor":  # while it is copied or unpacked, before it has one
            raise AttributeError(name)
        return getattr(self.processor, name)

    def __call__(self, images: Any, *args: Any, return_tensors: Any = None, **kwargs: Any) -> Any:
        """Return a `BatchFeature`, as the processor would.

        Args:
            images: one, or a list of them.
            return_tensors: `"pt"` or `"np"`; any other goes to the processor.
            kwargs: of the processor.
        """
        images = _with_files_read(images)
        flat = _flat(images)
        wanted = getattr(return_tensors, "value", return_tensors)
        found = self._of_each(flat, kwargs) if wanted in ("pt", "np") and not args else None
        if found is None:
            with self._lock:
                self.num_bypassed += 1
            return self.processor(_decoded(images), *args, return_tensors=return_tensors, **kwargs)
        from transformers.image_processing_base import BatchFeature

        joined = {name: np.concatenate([arrays[name] for arrays in found]) for name in found[0]}
        return BatchFeature(data=joined, tensor_type=return_tensors)

    preprocess = __call__

    @property
    def num_hits(self) -> int:
        """How many images were found, or processed by another process while this one waited."""
        return self.num_images - self.num_processed

    # ---- how

    def _of_each(self, images: Sequence[Any], kwargs: dict[str, Any]) -> list[Arrays] | None:
        """Return what the processor gives for each image; None if the call has to go to it as it is."""

        def has(name: str) -> bool:
            return bool(kwargs.get(name, getattr(self.processor, name, None)))

        if type(self.processor).__name__ not in ONE_BY_ONE or has("device"):
            return None
        if not images or (len(images) > 1 and any(map(has, _TYING))):
            return None
        try:
            prefix = f"processed/{self._fingerprint(kwargs)}/"
            keys = [prefix + _name_of(image) for image in images]
        except (TypeError, ValueError, NotCarried):  # no JSON value, or no image whose content can be seen
            return None

        def make(place: int) -> Arrays:
            with self._lock:
                self.num_processed += 1
            alone = self.processor(_decoded(images[place]), return_tensors="pt", **kwargs)
            return {name: value.numpy() for name, value in alone.items()}

        with self._lock:
            self.num_images += len(images)
        # Views: what is put together is copied then.
        return find_or_make(self._client, keys, make, view=True, tensors="numpy", timeout_s=self._timeout_s)

    def _fingerprint(self, kwargs: dict[str, Any]) -> str:
        kind = type(self.processor)
        parts = {
            "class": [kind.__module__, kind.__qualname__],
            "settings": json.loads(self.processor.to_json_string()),
            "arguments": kwargs,
            "versions": _versions(),
        }
        return fingerprint(parts)


def _name_of(image: Any) -> str:
    content = Content()
    if isinstance(image, bytes):
        content.add("file", image)
    else:
        add_image(content, image)
    return content.hexdigest()


def _with_files_read(images: Any) -> Any:
    if isinstance(images, (list, tuple)):
        return [_with_files_read(each) for each in images]
    return images.read_bytes() if isinstance(images, Path) else images


def _decoded(images: Any) -> Any:
    """Return images with files decoded as Transformers does."""
    if isinstance(images, list):
        return [_decoded(each) for each in images]
    if not isinstance(images, bytes):
        return images
    from PIL import Image
    from transformers.image_utils import load_image

    return load_image(Image.open(BytesIO(images)))


def _flat(images: Any) -> list[Any]:
    """Return images one by one, as processors take them out of lists, lists of lists, and batches."""
    if isinstance(images, list):
        return [image for each in images for image in _flat(each)]
    return list(images) if getattr(images, "ndim", 0) == 4 else [images]


@cache
def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
