"""Replaces `forward` of a pipeline's text encoders, so that each call with the same tokens is computed once per host.

    encode_prompt ──tokens──> forward ──look up──> found, or computed by one process while others wait ──> output

All else of `encode_prompt` runs as ever: tokenizers, the choice of layers, repetition for several images. A key names
the tokens and mask of the whole call, so a found output has the bits that the call would compute.

A call goes to the encoder unchanged, and is counted as bypassed, where its output is not a function of weights, code,
settings and tokens: in training, with gradients, under autocast, with adapters that are not merged, with foreign code
or foreign hooks, compiled, with unknown arguments, or of an unknown class.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from mmcached.client import Client
from mmcached.integrations.record_form import PartForm, RecordForm
from mmcached.integrations.transformers.records import find_or_make
from mmcached.integrations.transformers.tower_names import TowerNames
from mmcached.wire.closeable import Closeable
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.content import Content
from mmcached.worker.encoders.families import Family

_LOG = logging.getLogger(__name__)
_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
_FORWARD = Family({}, others=frozenset(), method="forward")
_OUTPUTS = {
    "CLIPTextModel": ("BaseModelOutputWithPooling", "pooler_output", "hidden_size"),
    "CLIPTextModelWithProjection": ("CLIPTextModelOutput", "text_embeds", "projection_dim"),
    "T5EncoderModel": ("BaseModelOutputWithPastAndCrossAttentions", None, None),
}
"""By class of encoder: its class of outputs, the name of the pooled part, and the setting with that part's width."""


@contextmanager
def cached_conditioning(pipeline: Any, client: Client, *, timeout_s: float = 30.0) -> Iterator[Conditioning]:
    """Make a pipeline take outputs of its text encoders from the store while the block runs; yields the counters.

    Args:
        pipeline: A pipeline of diffusers.
        timeout_s: How long to wait for another process that computes an output, before it is computed here.
    """
    conditioning = Conditioning(client, timeout_s=timeout_s)
    replaced = []
    try:
        for name in _ENCODERS:
            encoder = getattr(pipeline, name, None)
            if isinstance(encoder, torch.nn.Module) and conditioning.add(encoder):
                replaced.append(encoder)
        yield conditioning
    finally:
        for encoder in replaced:
            del encoder.__dict__["forward"]
        conditioning.close()


class Conditioning(Closeable):
    """Answers calls of the text encoders of one pipeline; threads may share it.

    Attributes:
        num_calls: Calls of text encoders, without bypassed ones.
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

    def add(self, encoder: Any) -> bool:
        """Replace `forward` of an encoder; return whether its outputs can be shared."""
        kind = type(encoder).__name__
        if kind not in _OUTPUTS or "forward" in encoder.__dict__:
            self._say(f"{kind}, or its forward, is not known")
            return False
        names = TowerNames(encoder, _FORWARD, self._client.run_dir, drop=self._drop, warn=self._say)
        try:
            names.start()
        except InvalidRequest as error:
            self._say(str(error))
            return False
        self._names.append(names)

        @functools.wraps(encoder.forward)
        def forward(*values: Any, **named: Any) -> Any:
            return self._of_call(encoder, names, values, named)

        encoder.__dict__["forward"] = forward
        return True

    def close(self) -> None:
        """Read all weights of encoders that have computed something. A second call does nothing."""
        for names in self._names:
            names.close()

    # ---- how

    def _of_call(self, encoder: Any, names: TowerNames, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        original = type(encoder).forward
        asked = _asked(encoder, values, named)
        named_by = None if asked is None else names.named(asked["input_ids"].device)
        if asked is None or named_by is None or named_by[1].dtype is None:
            with self._lock:
                self.num_bypassed += 1
            return original(encoder, *values, **named)
        with self._lock:
            self.num_calls += 1
        name, tower = named_by
        content = Content()
        for each, value in sorted(asked.items()):
            content.add(each, value)
        key = f"conditioning/{name}/{content.hexdigest()}"
        form = _form(encoder, asked, named_by[1].dtype)
        made: list[Any] = []

        def make(place: int) -> dict[str, Any]:
            made.append(original(encoder, *values, **named))
            with self._lock:
                self.num_encoded += 1
            record = _record(made[0])
            if (reason := form.check(record)) is not None:
                raise _NotShared(reason)
            return record

        def is_right(place: int, record: Any) -> bool:
            reason = form.check(record)
            if reason is not None:
                with self._lock:
                    self.num_refused += 1
                self._say(f"a record of the store has another form: {reason}")
            return reason is None

        try:
            (record,) = find_or_make(
                self._client, [key], make, is_right=is_right, view=False, timeout_s=self._timeout_s
            )
        except _NotShared as error:
            self._say(str(error))
            return made[0]
        if made:
            names.note_made([key], tower.weights)
            return made[0]
        return _output(encoder, record, asked["input_ids"].device)

    def _drop(self, keys: Any) -> None:
        for key in keys:
            self._client.drop(key)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            _LOG.warning("outputs of a text encoder are not shared: %s", reason)


class _NotShared(Exception):
    """An output has another form than expected, so that no process would accept it."""


def _asked(encoder: Any, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a call's output depends on beside the encoder; None if the call is not shared."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or encoder.training:
        return None
    bound = inspect.signature(type(encoder).forward).bind(encoder, *values, **named)
    given = dict(bound.arguments)
    rest = next((each.name for each in bound.signature.parameters.values() if each.kind is each.VAR_KEYWORD), "")
    given |= given.pop(rest, {})
    del given["self"]
    config = encoder.config
    asked = {name: value for name, value in given.items() if value is not None}
    has_states = asked.setdefault("output_hidden_states", bool(config.output_hidden_states))
    is_whole = asked.pop("return_dict", config.return_dict) and type(has_states) is bool
    has_attentions = asked.pop("output_attentions", False) or config.output_attentions
    if not is_whole or has_attentions or asked.keys() - {"input_ids", "attention_mask", "output_hidden_states"}:
        return None
    tensors = [asked[name] for name in ("input_ids", "attention_mask") if name in asked]
    if "input_ids" not in asked or any(type(each) is not torch.Tensor for each in tensors):
        return None
    device = asked["input_ids"].device
    return None if torch.is_autocast_enabled(device.type) or asked["input_ids"].dim() != 2 else asked


def _form(encoder: Any, asked: Mapping[str, Any], dtype: torch.dtype) -> RecordForm:
    _, pooled, width = _OUTPUTS[type(encoder).__name__]
    config = encoder.config
    num_rows, length = asked["input_ids"].shape
    states = PartForm((length, config.hidden_size), dtype, num_rows)
    parts: dict[str, Any] = {"last_hidden_state": states}
    if pooled is not None and width is not None:
        parts[pooled] = PartForm((getattr(config, width),), dtype, num_rows)
    if asked["output_hidden_states"]:
        parts["hidden_states"] = (states,) * (config.num_hidden_layers + 1)
    return RecordForm(parts)


def _record(output: Any) -> dict[str, Any]:
    return {
        name: [each.cpu() for each in part] if isinstance(part, tuple) else part.cpu() for name, part in output.items()
    }


def _output(encoder: Any, record: Mapping[str, Any], device: torch.device) -> Any:
    name = _OUTPUTS[type(encoder).__name__][0]
    module = sys.modules[type(encoder).__module__]
    return getattr(module, name)(
        **{
            each: tuple(layer.to(device) for layer in part) if isinstance(part, list | tuple) else part.to(device)
            for each, part in record.items()
        }
    )
