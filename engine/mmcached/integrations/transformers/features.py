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
import json
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from time import monotonic
from types import MethodType
from typing import Any

import torch

from mmcached.cache.fingerprints import fingerprint
from mmcached.client import Client
from mmcached.client.device.devices import Device, device_of
from mmcached.integrations.record_form import RecordForm
from mmcached.integrations.transformers import splitting
from mmcached.integrations.transformers.forms import dtype_of, form_of
from mmcached.integrations.transformers.records import find_or_make
from mmcached.integrations.transformers.splitting import Parts, Picture
from mmcached.integrations.transformers.tower_code import TowerCode, is_run_unchanged
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.content import Content
from mmcached.worker.encoders.families import FROM_CONFIG, Family, find_family
from mmcached.worker.encoders.weights import Weights, numeric_settings

_LOG = logging.getLogger(__name__)
READ_AGAIN_S = 30.0
"""Time between two readings of all weights."""
MAX_AGE_S = 60.0
"""Age of the last reading from which on a call reads all weights itself, because the thread has not."""
_HARMLESS = frozenset({"return_dict", "use_cache"})
"""Arguments on which no image feature depends."""
_NOT_KEPT = ("output_hidden_states", "output_attentions")
_TOLD_APART_BY_CONTENT = frozenset({"text_config", "architectures", "dtype", "torch_dtype", "transformers_version"})


@dataclass(slots=True)
class _Tower:
    """A model's tower as it was last read.

    Attributes:
        attention: Names of the attention functions of its configurations.
        dtype: Dtype of its parameters; None if they have several.
        read_at: Start of the last complete reading of the weights that found them unchanged, in monotonic seconds.
    """

    weights: Weights
    code: TowerCode
    attention: list[str]
    dtype: torch.dtype | None
    read_at: float


_KNOWN: weakref.WeakKeyDictionary[torch.nn.Module, _Tower] = weakref.WeakKeyDictionary()
_WRITTEN: weakref.WeakSet[Weights] = weakref.WeakSet()
"""Weights that were found changed without a trace: records under their name may belong to other weights."""


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
        self._name: tuple[Any, str] | None = None
        self._max_pinned_bytes = max_pinned_bytes
        self._devices: dict[str, Device] = {}
        self._made: list[tuple[Weights, str]] = []
        """Keys of the records encoded here since all weights were read, with the weights that name them."""
        self._said: set[str] = set()
        self._is_over = threading.Event()
        self._reading = threading.Thread(target=self._read_again, name="mmcached-weights", daemon=True)

    def start(self) -> None:
        """Read all weights, and start the thread that reads them again; InvalidRequest if one cannot be read."""
        self.fingerprint(self._model.device)
        self._reading.start()

    @property
    def num_hits(self) -> int:
        """Number of images found, or encoded by another process while this one waited."""
        return self.num_images - self.num_encoded

    def of_call(self, original: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Return the output of `original(*values, **named)`, joined from each image's features, found or encoded."""
        pictures = self._pictures(original, values, named)
        named_by = self._named_by(pictures[0].pixels.device) if pictures else None
        forms = self._forms(pictures, named_by[1]) if pictures and named_by else None
        if not pictures or named_by is None or forms is None:
            with self._lock:
                self.num_bypassed += 1
            return original(*values, **named)
        with self._lock:
            self.num_images += len(pictures)
        name, tower = named_by
        keys = [f"encoder/{name}/{_name_of(picture)}" for picture in pictures]
        device = self._device(str(pictures[0].pixels.device))
        found = self._find(original, keys, pictures, forms, tower.weights, view=self._view or device.reads_in_place)
        parts = splitting.join(self._family, found, device.load)
        return splitting.output_class(self._model, self._family)(**parts)

    def fingerprint(self, device: torch.device) -> str | None:
        """Return the fingerprint of all that features depend on beside the image; None if they cannot be shared.

        Args:
            device: The device on which the tower runs.

        Raises:
            InvalidRequest: A weight's bytes cannot be read.
        """
        named_by = self._named_by(device)
        return None if named_by is None else named_by[0]

    def read_weights(self) -> bool:
        """Read all weights now; return whether they are unchanged.

        If they have changed, the next call computes a new fingerprint, and records that this process has encoded since
        the last reading are dropped from the store: their fingerprint may have been wrong already.
        """
        with self._lock:
            tower, num_made, began_at = _KNOWN.get(self._model), len(self._made), monotonic()
        try:
            is_same = tower is not None and tower.weights.is_as_read()
        except (InvalidRequest, RuntimeError):  # the weights have moved to a device from which they cannot be read
            is_same = False
        with self._lock:
            made, self._made = self._made, self._made[num_made:] if is_same else []
            if tower is not None and is_same:
                tower.read_at = began_at
            elif tower is not None:
                _WRITTEN.add(tower.weights)
                if _KNOWN.get(self._model) is tower:
                    del _KNOWN[self._model]
            keys = [key for weights, key in made if weights in _WRITTEN]
        self._drop(keys)
        return is_same

    def close(self) -> None:
        """Read all weights if something was encoded since, and close devices. A second call does nothing."""
        self._is_over.set()
        if self._reading.is_alive():
            self._reading.join()
        if self._made:
            self.read_weights()
        for device in self._devices.values():
            device.close()

    # ---- how

    def _read_again(self) -> None:
        while not self._is_over.wait(READ_AGAIN_S):
            self.read_weights()

    def _drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._client.drop(key)

    def _named_by(self, device: torch.device) -> tuple[str, _Tower] | None:
        """Return the fingerprint and its tower; None if the features cannot be shared."""
        with self._lock:
            tower = self._tower()
            if monotonic() - tower.read_at > MAX_AGE_S and not self.read_weights():
                tower = self._tower()
            if tower.code.obstacle is not None:
                self._say("image features are not shared, because they depend on other code: %s", tower.code.obstacle)
                return None
            modules = [self._model, *tower.weights.modules]
            if any(module.training for module in modules) or not is_run_unchanged(modules):
                return None
            settings = [tower.weights.digest, tower.code.digest, tower.attention, numeric_settings(device)]
            settings.append([dict(config.__dict__) for config in tower.weights.configs])
            if self._name is None or self._name[0] != settings:
                parts = {
                    "host": "transformers",
                    "versions": [version("transformers"), torch.__version__],
                    "config": _relevant(json.loads(self._model.config.to_json_string(use_diff=False))),
                    "settings": settings[:-1],
                }
                self._name = settings, fingerprint(parts)
            return self._name[1], tower

    def _tower(self) -> _Tower:
        """Return the tower as it is now, reading only changed parts again."""
        tower = _KNOWN.get(self._model)
        if tower is None or tower.weights.is_changed():
            read_at = monotonic()
            weights = Weights(self._model, self._family.others)
        elif tower.code.is_changed(self._model) or tower.attention != _attention_of(tower.weights):
            read_at, weights = tower.read_at, tower.weights
        else:
            return tower
        attention = _attention_of(weights)
        code = TowerCode(self._model, self._family.others, self._family.method, attention)
        tower = _Tower(weights, code, attention, dtype_of(self._model, self._family), read_at)
        _KNOWN[self._model] = tower
        return tower

    def _forms(self, pictures: Sequence[Picture], tower: _Tower) -> list[RecordForm] | None:
        """Return the form of each image's features; None if one form is unknown."""
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
        """Log a warning, once for each reason."""
        if reason not in self._said:
            self._said.add(reason)
            _LOG.warning(text, reason)

    def _device(self, name: str) -> Device:
        with self._lock:
            if name not in self._devices:
                self._devices[name] = device_of(name, max_pinned_bytes=self._max_pinned_bytes)
            return self._devices[name]

    def _pictures(
        self, original: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Picture] | None:
        """Return the images of a call; None if it must go to the model unchanged."""
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
        if not isinstance(pixels, torch.Tensor) or not set(arguments) <= self._family.arguments:
            return None
        for name in FROM_CONFIG:  # given, or taken from the configuration: the same key
            if name in self._family.arguments and name not in arguments:
                arguments[name] = getattr(config, name)
        return splitting.split(self._family, pixels, arguments)

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
        # Stacked parts are copied when they are joined; others are handed out as they are, so the caller's `view`
        # decides.
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

        def is_right(place: int, record: Parts) -> bool:
            return self._is_right(forms[place], record)

        found = find_or_make(self._client, keys, make, is_right=is_right, view=view, timeout_s=self._timeout_s)
        if encoded:
            self._note_made([keys[place] for place in encoded], weights)
        # encoded outputs are on the device already
        return [encoded.get(place, parts) for place, parts in enumerate(found)]

    def _note_made(self, keys: list[str], weights: Weights) -> None:
        """Remember keys to be dropped if their fingerprint proves wrong; drop them now if the weights have changed
        already.
        """
        with self._lock:
            is_named_right = self._tower().weights is weights
            if is_named_right:
                self._made += [(weights, key) for key in keys]
        if not is_named_right:
            self._drop(keys)


def _arguments(signature: inspect.Signature, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, without those that are None or equal to their default."""
    bound = signature.bind(*values, **named).arguments
    rest = next((name for name, each in signature.parameters.items() if each.kind is each.VAR_KEYWORD), "")
    given = {**bound, **bound.get(rest, {})}
    given.pop(rest, None)
    defaults = {name: each.default for name, each in signature.parameters.items()}
    return {name: value for name, value in given.items() if value is not None and value is not defaults.get(name)}


def _attention_of(weights: Weights) -> list[str]:
    return [str(getattr(config, "_attn_implementation", None)) for config in weights.configs]


def _relevant(config: Any) -> Any:
    """Return a configuration without its text model, its origin, and settings that other parts of the name cover."""
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
