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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mmcached.client import Client
from mmcached.integrations.diffusers.calls import SharedCalls
from mmcached.integrations.diffusers.encoders import Encoder, find_encoder
from mmcached.integrations.transformers.tower_names import ReadTower, TowerNames
from mmcached.worker.encoders.content import Content

_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4", "image_encoder", "vae")


@contextmanager
def cached_conditioning(pipeline: Any, client: Client, *, timeout_s: float = 30.0) -> Iterator[Conditioning]:
    """Make a pipeline take outputs of its encoders from the store while the block runs; yields the counters.

    Args:
        pipeline: A pipeline of diffusers.
        timeout_s: How long to wait for another process that computes an output, before it is computed here.
    """
    with Conditioning(client, timeout_s=timeout_s) as conditioning:
        conditioning.add_all(pipeline)
        yield conditioning


class Conditioning(SharedCalls):
    """Answers calls of the encoders of one pipeline; threads may share it."""

    def __init__(self, client: Client, *, timeout_s: float) -> None:
        super().__init__(client, timeout_s=timeout_s)
        self._names: list[TowerNames] = []
        self._undo: list[Callable[[], object]] = []

    @property
    def num_encoders(self) -> int:
        """Number of encoders whose outputs are shared."""
        return len(self._undo)

    def add_all(self, pipeline: Any) -> None:
        """Replace the methods of a pipeline's known encoders."""
        for name in _ENCODERS:
            module = getattr(pipeline, name, None)
            if isinstance(module, torch.nn.Module):
                self.add(module)

    def add(self, module: Any) -> None:
        """Replace the method of a module's encoder, if its class is known and its weights can be read."""
        try:
            self._add(module)
        except Exception as error:  # a weight raises what its device or quantiser raises: the program goes on
            self.say(f"{type(module).__name__}: {error}")

    def close(self) -> None:
        """Restore the methods, and read all weights of encoders that have computed something.

        A second call does nothing.
        """
        while self._undo:
            self._undo.pop()()
        for names in self._names:
            names.close()

    # ---- how

    def _add(self, module: Any) -> None:
        encoder = find_encoder(module)
        if encoder is None or encoder.family.method in encoder.module.__dict__:
            self.say(f"{type(module).__name__}, or its method, is not known")
            return
        inner, method = encoder.module, encoder.family.method
        names = TowerNames(inner, encoder.family, self._client.run_dir, drop=self._drop, warn=self.say)
        names.start()
        self._names.append(names)

        @functools.wraps(getattr(inner, method))
        def replaced(*values: Any, **named: Any) -> Any:
            return self._of_call(encoder, names, values, named)

        inner.__dict__[method] = replaced
        self._undo.append(lambda: inner.__dict__.pop(method))

    def _of_call(self, encoder: Encoder, names: TowerNames, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        module = encoder.module
        compute = functools.partial(getattr(type(module), encoder.family.method), module, *values, **named)
        found = _asked(encoder, values, named)
        named_by = None if found is None else self._named_by(names, found[1])
        if found is None or named_by is None or (dtype := named_by[1].dtype) is None:
            self.bypass()
            return compute()
        asked, device = found
        name, tower = named_by
        content = Content()
        for each, value in sorted(asked.items()):
            content.add(each, value)
        return self.answer(
            f"conditioning/{name}/{content.hexdigest()}",
            compute,
            record=encoder.record,
            output=lambda record: encoder.output(record, asked),
            check=encoder.form(asked, dtype).check,
            device=device,
            note_made=lambda key: names.note_made([key], tower.weights),
        )

    def _named_by(self, names: TowerNames, device: torch.device) -> tuple[str, ReadTower] | None:
        try:
            return names.named(device)
        except Exception as error:  # a weight that is loaded for its layer's call cannot be read before
            self.say(str(error))
            return None

    def _drop(self, keys: Any) -> None:
        for key in keys:
            self._client.drop(key)


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
