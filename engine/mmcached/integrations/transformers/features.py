"""Replaces what a model asks for image features, so that the tower runs once per image and host.

    call ──split──> images ──look up all──> found, or encoded alone by one process while others wait ──join──> output

An image is encoded alone: what a tower gives for it depends, in the last bits, on what else is in its batch. So what is
found has the bits of the image alone, whoever has encoded it.

A call goes to the model as it is, and is counted as bypassed, where its result is not a function of weights, settings
and image: in training, with gradients, with adapters or foreign hooks on the tower, or with arguments that are not
known.
"""

from __future__ import annotations

import functools
import inspect
import json
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import torch

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.client.device.devices import Device, device_of
from mmcached.integrations.transformers import splitting
from mmcached.integrations.transformers.records import find_or_make
from mmcached.integrations.transformers.splitting import Parts, Picture
from mmcached.wire.closeable import Closeable
from mmcached.worker.encoders.content import Content
from mmcached.worker.encoders.families import FROM_CONFIG, Family, find_family
from mmcached.worker.encoders.weights import Weights, numeric_settings

_HARMLESS = frozenset({"return_dict", "use_cache"})
"""Arguments on which no image feature depends."""
_NOT_KEPT = ("output_hidden_states", "output_attentions")
_TOLD_APART_BY_CONTENT = frozenset({"text_config", "architectures", "dtype", "torch_dtype", "transformers_version"})
_KNOWN: weakref.WeakKeyDictionary[torch.nn.Module, Weights] = weakref.WeakKeyDictionary()


@contextmanager
def cached_image_features(
    model: Any, client: Client, *, view: bool = False, timeout_s: float = 30.0, max_pinned_mb: int = 2048
) -> Iterator[ImageFeatures]:
    """Have a model take image features from the store while the block runs; yields the counters.

    Args:
        model: of a known family (`families.FAMILIES`), or one that wraps it.
        view: hand out tensors in the store's memory where nothing has to be copied: **read them, never write**.
        timeout_s: how long to wait for another process that encodes an image; then it is encoded here.
        max_pinned_mb: of the store's memory, pinned for a CUDA device where features are read again; 0: none is.
    Raises:
        InvalidRequest: the model is of no known family, or its weights cannot be read.
    """
    inner, family = find_family(model)
    before = inner.__dict__.get(family.method)
    # Of a block around this one: through its method each image would wait for its own encoding.
    original = getattr(before, "original", None) or getattr(inner, family.method)
    features = ImageFeatures(
        inner, family, client, view=view, timeout_s=timeout_s, max_pinned_bytes=max_pinned_mb << 20
    )
    features.fingerprint(inner.device)  # reads all weights, and says what cannot be read, before the first request

    @functools.wraps(original)  # `generate` looks at the arguments' names
    def replaced(*values: Any, **named: Any) -> Any:
        return features.of_call(original, values, named)

    replaced.original = original  # type: ignore[attr-defined]
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
        num_images: that were asked for, not counting bypassed calls.
        num_encoded: how many of them the tower has encoded here; all others were found.
        num_bypassed: calls that went to the model as they were.
    """

    def __init__(
        self, model: Any, family: Family, client: Client, *, view: bool, timeout_s: float, max_pinned_bytes: int
    ) -> None:
        self.num_images = self.num_encoded = self.num_bypassed = 0
        self._model = model
        self._family = family
        self._client = client
        self._view = view
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._name: tuple[Any, str] | None = None
        self._max_pinned_bytes = max_pinned_bytes
        self._devices: dict[str, Device] = {}

    @property
    def num_hits(self) -> int:
        """How many images were found, or encoded by another process while this one waited."""
        return self.num_images - self.num_encoded

    def of_call(self, original: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return what `original(*values, **named)` is for: of each image alone, found or encoded."""
        pictures = self._pictures(original, values, named)
        name = self.fingerprint(pictures[0].pixels.device) if pictures else None
        if not pictures or name is None:
            with self._lock:
                self.num_bypassed += 1
            return original(*values, **named)
        with self._lock:
            self.num_images += len(pictures)
        keys = [f"encoder/{name}/{_name_of(picture)}" for picture in pictures]
        device = self._device(str(pictures[0].pixels.device))
        found = self._find(original, keys, pictures, view=self._view or device.reads_in_place)
        parts = splitting.join(self._family, found, device.load)
        return splitting.output_class(self._model, self._family)(**parts)

    def fingerprint(self, device: torch.device) -> str | None:
        """Return the name of all that features depend on beside the image, as it is now; None if it has none.

        Args:
            device: where the tower runs.
        Raises:
            InvalidRequest: a weight's bytes cannot be read.
        """
        with self._lock:
            weights = _KNOWN.get(self._model)
            if weights is None or weights.is_changed():
                weights = _KNOWN[self._model] = Weights(self._model, self._family.others)
            if any(_is_altered(module) for module in (self._model, *weights.modules)):
                return None
            attention = [str(getattr(config, "_attn_implementation", None)) for config in weights.configs]
            settings = [weights.digest, attention, numeric_settings(device)]
            if self._name is None or self._name[0] != settings:
                parts = {
                    "host": "transformers",
                    "versions": [version("transformers"), torch.__version__],
                    "config": _relevant(json.loads(self._model.config.to_json_string(use_diff=False))),
                    "settings": settings,
                }
                self._name = settings, fingerprint(parts)
            return self._name[1]

    def read_weights(self) -> None:
        """Read all weights with the next call, because they were changed in a way that leaves no trace."""
        with self._lock:
            _KNOWN.pop(self._model, None)

    def close(self) -> None:
        """Let go of devices. A second call does nothing."""
        for device in self._devices.values():
            device.close()

    # ---- how

    def _device(self, name: str) -> Device:
        with self._lock:
            if name not in self._devices:
                self._devices[name] = device_of(name, max_pinned_bytes=self._max_pinned_bytes)
            return self._devices[name]

    def _pictures(
        self, original: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Picture] | None:
        """Return the images of a call; None if it has to go to the model as it is."""
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or self._model.training:
            return None
        arguments = _arguments(inspect.signature(original), values, named)
        config = self._model.config
        if not arguments.pop("return_dict", config.return_dict) or any(getattr(config, each) for each in _NOT_KEPT):
            return None
        arguments = {name: value for name, value in arguments.items() if name not in _HARMLESS}
        pixels = arguments.pop("pixel_values", None)
        if not isinstance(pixels, torch.Tensor) or not set(arguments) <= self._family.arguments:
            return None
        for name in FROM_CONFIG:  # said, or left to the configuration: one key
            if name in self._family.arguments and name not in arguments:
                arguments[name] = getattr(config, name)
        return splitting.split(self._family, pixels, arguments)

    def _find(
        self, original: Callable[..., Any], keys: list[str], pictures: list[Picture], *, view: bool
    ) -> list[Parts]:
        # Parts that are put together are copied then; others are handed out, so the caller says whether they are his.
        view = view or set(self._family.parts.values()) == {"stacked"}
        encoded: dict[int, Parts] = {}

        def make(place: int) -> Parts:
            picture = pictures[place]
            encoded[place] = splitting.parts_of(
                self._family, original(picture.pixels, **picture.arguments, return_dict=True)
            )
            with self._lock:
                self.num_encoded += 1
            return _to_host(encoded[place])

        found = find_or_make(self._client, keys, make, view=view, timeout_s=self._timeout_s)
        return [encoded.get(place, parts) for place, parts in enumerate(found)]  # those are on the device already


def _arguments(signature: inspect.Signature, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, without those that say what is meant anyway."""
    bound = signature.bind(*values, **named).arguments
    rest = next((name for name, each in signature.parameters.items() if each.kind is each.VAR_KEYWORD), "")
    given = {**bound, **bound.get(rest, {})}
    given.pop(rest, None)
    defaults = {name: each.default for name, each in signature.parameters.items()}
    return {name: value for name, value in given.items() if value is not None and value is not defaults.get(name)}


def _is_altered(module: torch.nn.Module) -> bool:
    """Return whether a module trains, is an adapter's, or has hooks that are not Transformers' own."""
    return (
        module.training
        or type(module).__module__.startswith("peft.")
        or any(
            not str(getattr(hook, "__module__", "")).startswith("transformers.")
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
            for hook in hooks.values()
        )
    )


def _relevant(config: Any) -> Any:
    """Return a configuration without its text model, and what says only where it comes from or is told elsewhere."""
    if not isinstance(config, dict):
        return config
    return {
        name: _relevant(value)
        for name, value in config.items()
        if name not in _TOLD_APART_BY_CONTENT and not name.startswith("_")
    }


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
