"""Replaces the methods of a pipeline's encoders, so that each call with the same inputs is computed once per host.

    tokens, pixels ──> forward, or encode of a VAE ──look up──> found, or computed by one process while others wait

All else of a pipeline runs as ever: tokenizers, image processors, the choice of layers, the noise of latents. A key
names the inputs of the whole call, so a found output has the bits that the call would compute.

A call goes to the encoder unchanged, and is counted as bypassed, where its output is not a function of weights, code,
settings and inputs: in training, with gradients, under autocast, with adapters that are not merged, with foreign code
or foreign hooks, compiled, with unknown arguments, or of an unknown class.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from mmcached.client import Client
from mmcached.integrations.diffusers.encoders import Encoder, find_encoder
from mmcached.integrations.transformers.records import find_or_make
from mmcached.integrations.transformers.tower_names import TowerNames
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.content import Content

_LOG = logging.getLogger(__name__)
_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4", "image_encoder", "vae")


@contextmanager
def cached_conditioning(pipeline: Any, client: Client, *, timeout_s: float = 30.0) -> Iterator[Conditioning]:
    """Make a pipeline take outputs of its encoders from the store while the block runs; yields the counters.

    Args:
        pipeline: A pipeline of diffusers.
        timeout_s: How long to wait for another process that computes an output, before it is computed here.
    """
    conditioning = Conditioning(client, timeout_s=timeout_s)
    undo = []
    try:
        for name in _ENCODERS:
            module = getattr(pipeline, name, None)
            if isinstance(module, torch.nn.Module) and (restore := conditioning.add(module)) is not None:
                undo.append(restore)
        yield conditioning
    finally:
        for restore in undo:
            restore()
        conditioning.close()


class Conditioning(Closeable):
    """Answers calls of the encoders of one pipeline; threads may share it.

    Attributes:
        num_calls: Calls of encoders, without bypassed ones.
        num_encoded: Calls computed here; all others were found.
        num_bypassed: Calls that went to the encoder unchanged.
        num_refused: Found records whose form is not the one that the encoder's configuration implies.
    """

    def __init__(self, client: Client, *, timeout_s: float) -> None:
        self.num_calls = self.num_encoded = self.num_bypassed = self.num_refused = 0
        self._client = client
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._names: list[TowerNames] = []
        self._said: set[str] = set()

    @property
    def num_hits(self) -> int:
        """Number of calls found, or computed by another process while this one waited."""
        return self.num_calls - self.num_encoded

    def add(self, module: Any) -> Callable[[], object] | None:
        """Replace the method of a module's encoder; return a function that undoes it, None if nothing was replaced."""
        encoder = find_encoder(module)
        if encoder is None or encoder.family.method in encoder.module.__dict__:
            self._say(f"{type(module).__name__}, or its method, is not known")
            return None
        inner, method = encoder.module, encoder.family.method
        names = TowerNames(inner, encoder.family, self._client.run_dir, drop=self._drop, warn=self._say)
        try:
            names.start()
        except InvalidRequest as error:
            self._say(str(error))
            return None
        self._names.append(names)

        @functools.wraps(getattr(inner, method))
        def replaced(*values: Any, **named: Any) -> Any:
            return self._of_call(encoder, names, values, named)

        inner.__dict__[method] = replaced
        return lambda: inner.__dict__.pop(method)

    def close(self) -> None:
        """Read all weights of encoders that have computed something. A second call does nothing."""
        for names in self._names:
            names.close()

    # ---- how

    def _of_call(self, encoder: Encoder, names: TowerNames, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        module = encoder.module
        original = getattr(type(module), encoder.family.method)
        found = _asked(encoder, values, named)
        named_by = None if found is None else names.named(found[1])
        if found is None or named_by is None or named_by[1].dtype is None:
            with self._lock:
                self.num_bypassed += 1
            return original(module, *values, **named)
        asked, device = found
        with self._lock:
            self.num_calls += 1
        name, tower = named_by
        content = Content()
        for each, value in sorted(asked.items()):
            content.add(each, value)
        key = f"conditioning/{name}/{content.hexdigest()}"
        form = encoder.form(asked, named_by[1].dtype)
        made: list[Any] = []

        def make(place: int) -> dict[str, Any]:
            parts = encoder.record(original(module, *values, **named))
            made.append(encoder.output(parts, asked))
            with self._lock:
                self.num_encoded += 1
            record = {name: _over(part, torch.Tensor.cpu) for name, part in parts.items()}
            if (reason := form.check(record)) is not None:
                raise _NotShared(reason)
            if not _is_contiguous(parts):
                raise _NotShared("its tensors are not contiguous")
            return record

        def is_right(place: int, record: Any) -> bool:
            reason = form.check(record)
            if reason is not None:
                with self._lock:
                    self.num_refused += 1
                self._say(f"a record of the store has another form: {reason}")
            return reason is None

        # On another device a record is read in place and copied there; on the CPU the caller may write to its copy.
        view = device.type != "cpu"
        try:
            (record,) = find_or_make(self._client, [key], make, is_right=is_right, view=view, timeout_s=self._timeout_s)
        except _NotShared as error:
            self._say(str(error))
            return made[0]
        if made:
            names.note_made([key], tower.weights)
            return made[0]
        return encoder.output({name: _over(part, lambda each: each.to(device)) for name, part in record.items()}, asked)

    def _drop(self, keys: Any) -> None:
        for key in keys:
            self._client.drop(key)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _LOG.warning("outputs of an encoder are not shared: %s", reason)


class _NotShared(Exception):
    """An output has another form than expected, so that no process would accept it."""


def _asked(
    encoder: Encoder, values: tuple[Any, ...], named: dict[str, Any]
) -> tuple[dict[str, Any], torch.device] | None:
    """Return what a call's output depends on beside the module, and its device; None if the call is not shared."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or encoder.module.training:
        return None
    asked = encoder.asked(values, named)
    if asked is None:
        return None
    device = next(each.device for each in asked.values() if isinstance(each, torch.Tensor))
    return None if torch.is_autocast_enabled(device.type) else (asked, device)


def _over(part: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a part of a record, a tensor or a list of tensors, with each tensor changed."""
    return [change(each) for each in part] if isinstance(part, list | tuple) else change(part)


def _is_contiguous(record: Mapping[str, Any]) -> bool:
    parts = [part if isinstance(part, list) else [part] for part in record.values()]
    return all(each.is_contiguous() for part in parts for each in part)
