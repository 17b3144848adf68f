"""Wraps an image processor of Transformers, so that each image is processed once per host.

    images ──content of each──> look up all ──> found, or processed alone by one process ──joined──> batch

The joined result equals the processor's own, bit for bit: this is tested for the processors in
`image_batches.BATCHES`, which treat the images of a batch one by one. Calls of other processors, and calls that pad
several images to one size, go to the processor unchanged and count as bypassed.

The expected form of a record is found by processing a few blank images of the same kind.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Hashable, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.integrations.record_form import PartForm, RecordForm
from mmcached.integrations.transformers.image_batches import BATCHES, PIXELS, Arrays, Batch
from mmcached.integrations.transformers.records import find_or_make
from mmcached.shm.store.tensor_bytes import NotCarried, is_tensor
from mmcached.wire.extras import package_versions
from mmcached.worker.encoders.content import Content, add_image

_LOG = logging.getLogger(__name__)
EXAMPLES = ((224, 448), (448, 224), (224, 224))
"""Heights and widths of the blank images that show the form of a processor's result; patches divide them."""
_PARTNER = (32, 32)
"""Height and width of the blank image that an image of a group is processed with: groups of one are cut into tiles."""
_CHANNELS = (1, 3, 4)
_PACKAGES = ("transformers", "torch", "torchvision", "numpy", "pillow")


class CachedImageProcessor:
    """A drop-in image processor that takes processed images from the store, with the wrapped processor's attributes.

    Beside arrays, tensors and Pillow images it takes encoded files, as `bytes` or `Path`. A file gives the result of
    `processor(load_image(path))`, and is not decoded if the result is found.

    Args:
        processor: The processor of Transformers; its settings may still be changed.
        timeout_s: How long to wait for another process that processes an image, before it is processed here.

    Attributes:
        num_images: Requested images, without those of bypassed calls.
        num_processed: Images that were processed here; all others were found.
        num_bypassed: Calls that went to the processor unchanged.
        num_refused: Found records whose form is not that of the processor's results.
    """

    def __init__(self, processor: Any, client: Client, *, timeout_s: float = 30.0) -> None:
        self.num_images = self.num_processed = self.num_bypassed = self.num_refused = 0
        self.processor = processor
        self._client = client
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._forms: dict[tuple[str, Hashable], RecordForm] = {}

    def __getattr__(self, name: str) -> Any:
        if name == "processor":  # while it is copied or unpickled, before it has a processor
            raise AttributeError(name)
        return getattr(self.processor, name)

    def __call__(self, images: Any, *args: Any, return_tensors: Any = None, **kwargs: Any) -> Any:
        """Return a `BatchFeature`, as the processor would.

        Args:
            images: An image, or a list of images.
            return_tensors: `"pt"` or `"np"`; with any other value the call goes to the processor.
            kwargs: Arguments of the processor.
        """
        images = _with_files_read(images)
        flat = _flat(images)
        wanted = getattr(return_tensors, "value", return_tensors)
        batch = BATCHES.get(type(self.processor).__name__) if wanted in ("pt", "np") and not args else None
        groups = None if batch is None else batch.groups(images, len(flat))
        found = None if batch is None or groups is None else self._of_each(batch, flat, groups, kwargs)
        if batch is None or groups is None or found is None:
            with self._lock:
                self.num_bypassed += 1
            return self.processor(_decoded(images), *args, return_tensors=return_tensors, **kwargs)
        from transformers.image_processing_base import BatchFeature

        data: dict[str, Any] = batch.join(found, groups)
        for name, tensor in data.items():
            if name in batch.plain:
                data[name] = tensor.tolist()
            elif wanted == "np":
                data[name] = tensor.numpy()
        return BatchFeature(data=data, tensor_type=return_tensors, skip_tensor_conversion=list(batch.plain))

    preprocess = __call__

    @property
    def num_hits(self) -> int:
        """Number of images found, or processed by another process while this one waited."""
        return self.num_images - self.num_processed

    # ---- how

    def _of_each(
        self, batch: Batch, images: Sequence[Any], groups: Sequence[int], kwargs: dict[str, Any]
    ) -> list[Arrays] | None:
        """Return the processor's result for each image; None if the call must go to the processor unchanged."""

        def setting(name: str) -> Any:
            return kwargs.get(name, getattr(self.processor, name, None))

        if not images or setting("device") or (len(images) > 1 and not batch.is_joined(setting)):
            return None
        grouped = [size > 1 for size in groups for _ in range(size)]
        try:
            name = self._fingerprint(kwargs)
            keys = [
                f"processed/{name}/{_name_of(image)}{'/grouped' if is_grouped else ''}"
                for image, is_grouped in zip(images, grouped, strict=True)
            ]
            forms = [
                self._form(name, image, is_grouped, kwargs) for image, is_grouped in zip(images, grouped, strict=True)
            ]
        # an argument is no JSON value, or an image's content cannot be hashed
        except (TypeError, ValueError, NotCarried):
            return None

        def make(place: int) -> Arrays:
            with self._lock:
                self.num_processed += 1
            return self._alone(_decoded(images[place]), grouped[place], kwargs)

        def is_right(place: int, record: Any) -> bool:
            reason = forms[place].check(record) or batch.mismatch(record, setting, is_grouped=grouped[place])
            self._note_refused(reason)
            return reason is None

        with self._lock:
            self.num_images += len(images)
        # Joining several images copies them: views are enough.
        view = len(images) > 1
        return find_or_make(self._client, keys, make, is_right=is_right, view=view, timeout_s=self._timeout_s)

    def _alone(self, image: Any, is_grouped: bool, kwargs: dict[str, Any]) -> Arrays:
        images = [[image, _blank(image, *_PARTNER)]] if is_grouped else image
        result = self.processor(images, return_tensors="pt", **kwargs)
        arrays = {name: torch.as_tensor(value) for name, value in result.items()}
        if arrays.pop("batch_num_images", None) is not None and is_grouped:
            arrays = {name: array[:1] for name, array in arrays.items()}
        return arrays

    def _form(self, fingerprint: str, image: Any, is_grouped: bool, kwargs: dict[str, Any]) -> RecordForm:
        """Return the form of the processor's result for an image; sizes that depend on the image are left open.

        Raises:
            ValueError: The processor does not take an image of this kind.
        """
        kind = (_kind_of(image), is_grouped)
        if (fingerprint, kind) not in self._forms:
            try:
                seen = [self._alone(_blank(image, *size), is_grouped, kwargs) for size in EXAMPLES]
            except Exception as error:
                raise ValueError(f"the processor takes no image of kind {kind}") from error
            open_axis = BATCHES[type(self.processor).__name__].open_axis
            self._forms[fingerprint, kind] = RecordForm(
                {name: _form([each[name] for each in seen], open_axis if name == PIXELS else None) for name in seen[0]}
            )
        return self._forms[fingerprint, kind]

    def _note_refused(self, reason: str | None) -> None:
        if reason is None:
            return
        with self._lock:
            self.num_refused += 1
            is_first = self.num_refused == 1
        if is_first:
            _LOG.warning("a record of the store is not used: %s (logged once)", reason)

    def _fingerprint(self, kwargs: dict[str, Any]) -> str:
        kind = type(self.processor)
        parts = {
            "class": [kind.__module__, kind.__qualname__],
            "settings": json.loads(self.processor.to_json_string()),
            "arguments": kwargs,
            "versions": _versions(),
        }
        return fingerprint(parts)


def _form(seen: Sequence[torch.Tensor], open_axis: int | None) -> PartForm:
    first = seen[0]
    if any((each.dim(), each.dtype) != (first.dim(), first.dtype) for each in seen):
        raise ValueError("rank and dtype depend on the image")
    sizes = [{each.shape[place] for each in seen} for place in range(1, first.dim())]
    trailing = (size.pop() if len(size) == 1 and place != open_axis else None for place, size in enumerate(sizes, 1))
    return PartForm(tuple(trailing), first.dtype, None)


def _kind_of(image: Any) -> Hashable:
    """Return the properties of an image that decide the form of a processor's result."""
    if isinstance(image, bytes):
        return "RGB"  # as `load_image` decodes it
    if not is_tensor(image):
        return str(image.mode)
    axis = _channel_axis(image)
    return type(image).__name__, str(image.dtype), image.ndim, axis, None if axis is None else image.shape[axis]


def _channel_axis(image: Any) -> int | None:
    return next((axis for axis in (0, -1) if image.ndim == 3 and image.shape[axis] in _CHANNELS), None)


def _blank(image: Any, height: int, width: int) -> Any:
    from PIL import Image

    if not is_tensor(image):
        return Image.new("RGB" if isinstance(image, bytes) else image.mode, (width, height))
    shape = [height, width]
    if image.ndim == 3:
        axis = _channel_axis(image)
        if axis is None:
            raise ValueError(f"no channels in an image of shape {tuple(image.shape)}")
        shape.insert(axis if axis == 0 else 2, image.shape[axis])
    return np.zeros(shape, image.dtype) if isinstance(image, np.ndarray) else torch.zeros(shape, dtype=image.dtype)


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
    if isinstance(images, list):
        return [_decoded(each) for each in images]
    if not isinstance(images, bytes):
        return images
    from PIL import Image
    from transformers.image_utils import load_image

    return load_image(Image.open(BytesIO(images)))


def _flat(images: Any) -> list[Any]:
    """Return images one by one, taken out of lists, lists of lists, and batches as processors do."""
    if isinstance(images, list):
        return [image for each in images for image in _flat(each)]
    return list(images) if getattr(images, "ndim", 0) == 4 else [images]


@cache
def _versions() -> dict[str, str | None]:
    return package_versions(_PACKAGES)
