"""Replaces a model's method for image features, so that the tower runs once per image and host.

    call ──split──> images ──look up all──> found, or encoded alone by one process while others wait ──join──> output

An image is encoded alone: a tower's output for it depends, in the last bits, on the rest of its batch. So a found
record has the bits of the image encoded alone, in whichever process. A record of another form than the model's
configuration implies is encoded again.

A call goes to the model unchanged, and is counted as bypassed, where its result is not a function of weights, code,
settings and image: in training, with gradients, with adapters, with foreign code or foreign hooks in the tower,
compiled, or with unknown arguments.

A thread reads all weights repeatedly, to detect changes that leave no trace.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch

from mmcached.cache.store_keys import output_key
from mmcached.client import Client
from mmcached.client.device.devices import Device, device_of
from mmcached.integrations.record_form import RecordForm
from mmcached.integrations.transformers import splitting
from mmcached.integrations.transformers.forms import form_of
from mmcached.integrations.transformers.records import find_or_make
from mmcached.integrations.transformers.splitting import Parts, Picture
from mmcached.integrations.transformers.tower_names import ReadTower, TowerNames
from mmcached.wire.closeable import Closeable
from mmcached.worker.encoders import packing
from mmcached.worker.encoders.content import Content
from mmcached.worker.encoders.families import FROM_CONFIG, Family, find_family
from mmcached.worker.encoders.weights import Weights

_LOG = logging.getLogger(__name__)
_HARMLESS = frozenset({"return_dict", "use_cache"})
"""Arguments on which no image feature depends."""
_NOT_KEPT = ("output_hidden_states", "output_attentions")


@contextmanager
def cached_image_features(
    model: Any, client: Client, *, view: bool = False, timeout_s: float = 30.0, max_pinned_mb: int = 2048
) -> Iterator[ImageFeatures]:
    """Make a model take image features from the store while the block runs; yields the counters.

    Args:
        model: A model of a known family (`families.FAMILIES`), or a model that wraps one.
        view: Hand out tensors in the store's memory where nothing has to be copied: **read them, never write**.
        timeout_s: How long to wait for another process that encodes an image, before it is encoded here.
        max_pinned_mb: MiB of the store's memory, pinned for a CUDA device where features are read again; 0 pins none.

    Raises:
        InvalidRequest: The model is of no known family, or its weights cannot be read.
    """
    inner, family = find_family(model)
    before = inner.__dict__.get(family.method)
    # Set by a block around this one: through its method each image would wait for its own encoding.
    patched = None if before is None else getattr(before, "patched", before)
    features = ImageFeatures(
        inner, family, client, view=view, timeout_s=timeout_s, max_pinned_bytes=max_pinned_mb << 20
    )
    features.start()

    @functools.wraps(getattr(inner, family.method))  # `generate` looks at the arguments' names
    def replaced(*values: Any, **named: Any) -> Any:
        original = patched or MethodType(getattr(type(inner), family.method), inner)
        return features.of_call(original, values, named)

    replaced.patched = patched  # type: ignore[attr-defined]
    inner.__dict__[family.method] = replaced
    try:
        yield features
    finally:
        if before is None:
            del inner.__dict__[family.method]
        else:
            inner.__dict__[family.method] = before
        features.close()


class ImageFeatures(Closeable):
    """Answers calls for image features of one model; threads may share it.

    Attributes:
        num_images: Requested images, without those of bypassed calls.
        num_encoded: Images that the tower has encoded here; all others were found.
        num_bypassed: Calls that went to the model unchanged.
        num_refused: Found records whose form is not the one that the model expects.
    """

    def __init__(
        self, model: Any, family: Family, client: Client, *, view: bool, timeout_s: float, max_pinned_bytes: int
    ) -> None:
        self.num_images = self.num_encoded = self.num_bypassed = self.num_refused = 0
        self._model = model
        self._family = family
        self._client = client
        self._view = view
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._max_pinned_bytes = max_pinned_bytes
        self._devices: dict[str, Device] = {}
        self._said: set[str] = set()
        self._names = TowerNames(
            model,
            family,
            client.run_dir,
            drop=self._drop,
            warn=partial(self._say, "image features are not shared, because they depend on other code: %s"),
        )

    def start(self) -> None:
        """Read all weights, and start the thread that reads them again; InvalidRequest if one cannot be read."""
        self._names.start()

    @property
    def num_hits(self) -> int:
        """Number of images found, or encoded by another process while this one waited."""
        return self.num_images - self.num_encoded

    def of_call(self, original: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the output of `original(*values, **named)`, joined from each image's features, found or encoded."""
        call = self._call_of(original, values, named)
        named_by = self._names.named(call[0].device) if call else None
        output = self._output_of(original, *call, named_by) if call and named_by else None
        if output is None:
            with self._lock:
                self.num_bypassed += 1
            return original(*values, **named)
        return splitting.output_class(self._model, self._family)(**output)

    def fingerprint(self, device: torch.device) -> str | None:
        """Return the fingerprint of all that features depend on beside the image; None if they cannot be shared.

        Args:
            device: The device on which the tower runs.

        Raises:
            InvalidRequest: A weight's bytes cannot be read.
        """
        named_by = self._names.named(device)
        return None if named_by is None else named_by[0]

    def read_weights(self) -> bool:
        """Read all weights now; return whether they are unchanged."""
        return self._names.read_weights()

    def close(self) -> None:
        """Read all weights if something was encoded since, and close devices. A second call does nothing."""
        self._names.close()
        for device in self._devices.values():
            device.close()

    # ---- how

    def _drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._client.drop(key)

    def _output_of(
        self, original: Any, pixels: torch.Tensor, arguments: Mapping[str, Any], named_by: tuple[str, ReadTower]
    ) -> Parts | None:
        """Return the parts of the output of a call; None if their form is not known beforehand."""
        if self._family.packing:
            return self._packed(original.__func__, pixels, arguments, named_by)
        pictures = splitting.split(self._family, pixels, arguments)
        forms = self._forms(pictures, named_by[1]) if pictures else None
        return self._joined(original, pictures, forms, named_by) if pictures and forms else None

    def _packed(
        self, method: Any, pixels: torch.Tensor, arguments: Mapping[str, Any], named_by: tuple[str, ReadTower]
    ) -> Parts | None:
        if pixels.dim() not in (4, 5) or not pixels.numel():
            return None
        of_tile = {name: value for name, value in arguments.items() if name in self._family.arguments}
        pictures = [Picture(tile[None].contiguous(), of_tile) for tile in pixels.flatten(0, -4)]
        forms = self._forms(pictures, named_by[1])
        if forms is None:
            return None
        alone = packing.of_one_tile(self._model, method)

        def encode(numbers: list[int]) -> torch.Tensor:
            chosen, forms_of = [pictures[number] for number in numbers], [forms[number] for number in numbers]
            return torch.stack(self._joined(alone, chosen, forms_of, named_by)["pooler_output"])

        return {"pooler_output": packing.pack(self._model, method, pixels, arguments, encode)}

    def _joined(
        self, original: Any, pictures: list[Picture], forms: list[RecordForm], named_by: tuple[str, ReadTower]
    ) -> Parts:
        with self._lock:
            self.num_images += len(pictures)
        name, tower = named_by
        keys = [output_key(name, _name_of(picture), "image") for picture in pictures]
        device = self._device(str(pictures[0].pixels.device))
        found = self._find(original, keys, pictures, forms, tower.weights, view=self._view or device.reads_in_place)
        return splitting.join(self._family, found, device.load)

    def _forms(self, pictures: Sequence[Picture], tower: ReadTower) -> list[RecordForm] | None:
        forms = [form_of(self._model, picture, tower.dtype) for picture in pictures]
        known = [form for form in forms if form is not None]
        if len(known) == len(forms):
            return known
        self._say("image features are not shared, because their %s is not known beforehand", "form")
        return None

    def _is_right(self, form: RecordForm, record: Parts) -> bool:
        reason = form.check(record)
        if reason is None:
            return True
        with self._lock:
            self.num_refused += 1
        self._say("a record of the store is not used: %s", reason)
        return False

    def _say(self, text: str, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _LOG.warning(text, reason)

    def _device(self, name: str) -> Device:
        with self._lock:
            if name not in self._devices:
                self._devices[name] = device_of(name, max_pinned_bytes=self._max_pinned_bytes)
            return self._devices[name]

    def _call_of(
        self, original: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[torch.Tensor, dict[str, Any]] | None:
        """Return pixels and arguments of a call; None if it must go to the model unchanged."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or self._model.training:
            return None
        if getattr(original, "__func__", None) is not getattr(type(self._model), self._family.method):
            self._say("image features are not shared, because the model's %s is not its class's", self._family.method)
            return None
        arguments = _arguments(inspect.signature(original), values, named)
        config = self._model.config
        if not arguments.pop("return_dict", config.return_dict) or any(getattr(config, each) for each in _NOT_KEPT):
            return None
        arguments = {name: value for name, value in arguments.items() if name not in _HARMLESS}
        pixels = arguments.pop("pixel_values", None)
        known = self._family.arguments | self._family.packing
        if not isinstance(pixels, torch.Tensor) or not set(arguments) <= known:
            return None
        for name in FROM_CONFIG:  # given, or taken from the configuration: the same key
            if name in self._family.arguments and name not in arguments:
                arguments[name] = getattr(config, name)
        return pixels, arguments

    def _find(
        self,
        original: Callable[..., Any],
        keys: list[str],
        pictures: list[Picture],
        forms: list[RecordForm],
        weights: Weights,
        *,
        view: bool,
    ) -> list[Parts]:
        # Stacked parts, and packed ones, are copied when they are joined; others are handed out as they are, so the
        # caller's `view` decides.
        view = view or bool(self._family.packing) or set(self._family.parts.values()) == {"stacked"}
        encoded: dict[int, Parts] = {}

        def make(place: int) -> Parts:
            picture = pictures[place]
            encoded[place] = splitting.parts_of(
                self._family, original(picture.pixels, **picture.arguments, return_dict=True)
            )
            with self._lock:
                self.num_encoded += 1
            return _to_host(encoded[place])

        def is_right(place: int, record: Parts) -> bool:
            return self._is_right(forms[place], record)

        found = find_or_make(self._client, keys, make, is_right=is_right, view=view, timeout_s=self._timeout_s)
        if encoded:
            self._names.note_made([keys[place] for place in encoded], weights)
        # encoded outputs are on the device already
        return [encoded.get(place, parts) for place, parts in enumerate(found)]


def _arguments(signature: inspect.Signature, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, without those that are None or equal to their default."""
    bound = signature.bind(*values, **named).arguments
    rest = next((name for name, each in signature.parameters.items() if each.kind is each.VAR_KEYWORD), "")
    given = {**bound, **bound.get(rest, {})}
    given.pop(rest, None)
    defaults = {name: each.default for name, each in signature.parameters.items()}
    return {name: value for name, value in given.items() if value is not None and value is not defaults.get(name)}


def _name_of(picture: Picture) -> str:
    content = Content()
    content.add("pixels", picture.pixels)
    for name, value in sorted(picture.arguments.items()):
        content.add(name, value)
    return content.hexdigest()


def _to_host(parts: Parts) -> Parts:
    return {name: _cpu(part) for name, part in parts.items()}


def _cpu(part: Any) -> Any:
    if isinstance(part, list):
        return [each.cpu() for each in part]
    return None if part is None else part.cpu()
