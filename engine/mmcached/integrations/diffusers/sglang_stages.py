"""Puts the store behind the conditioning cache of SGLang's diffusion servers.

    stage ──> ConditioningCache.run ──not there──> compute ──look up──> found, or computed by one process

SGLang's cache decides which calls can be cached, as a function of the encoder, the stage and the arguments, and it is
told before weights change. Its records are what stages use, such as one layer's states, and not what encoders return.
A call goes to SGLang unchanged if several ranks compute it together, in a warm-up, or if its encoder has no name:
offloaded by layers, sharded, compiled, or with other code than torch's, Transformers', diffusers' and SGLang's.

Pipelines that SGLang runs by diffusers have no such cache: their encoders are replaced, as by `cached_conditioning`.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import weakref
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmcached.cache.name_files import note_name
from mmcached.cache.output_names import computing_variables
from mmcached.client import Client
from mmcached.integrations.diffusers.calls import SharedCalls
from mmcached.integrations.diffusers.conditioning import Conditioning
from mmcached.integrations.diffusers.output_trees import NotDescribed, check_record, output_of, record_of
from mmcached.integrations.transformers.engine_code import EngineCode, packages_of
from mmcached.integrations.transformers.function_code import text_of
from mmcached.integrations.transformers.tower_code import is_run_unchanged
from mmcached.wire.errors import InvalidRequest
from mmcached.worker.encoders.computing import autocast_row, device_row, library_row, precision_row, threads_row
from mmcached.worker.encoders.content import Content, add_image
from mmcached.worker.encoders.weights import Weights

_LOG = logging.getLogger("sglang.mmcached")
_PIPELINES: list[Conditioning] = []
"""What answers the calls of pipelines of diffusers, as long as the process lives."""
_DEVICE = re.compile(r"(cpu|cuda|xpu|npu|musa|mps)(:\d+)?")


def run_with_store(run: Callable[..., Any], cache: Any, model: Any, *call: Any, **named: Any) -> Any:
    """Do what `ConditioningCache.run` does; what it would compute is looked for in the store.

    Args:
        call: The name of the encoder's method, its arguments, what computes, and the group of ranks that do, if any.
    """
    method, args, kwargs, compute, *group = call
    conditioning = _conditioning()
    if any(each is not None and each.world_size > 1 for each in group) or is_warming_up():
        return run(cache, model, *call, **named)
    shared = functools.partial(conditioning.of_call, compute, model, named.get("namespace"), (method, args, kwargs))
    return run(cache, model, method, args, kwargs, shared, *group, **named)


def forget_before_invalidate(cache: Any, parameters: set[int] | None) -> None:
    """Forget the names of encoders whose weights change: of all, or of those with these parameters, by `id`."""
    _conditioning().forget(parameters)


def is_warming_up() -> bool:
    from sglang.multimodal_gen.runtime.cache import conditioning

    return bool(conditioning._refresh_cache.get())


def share_pipeline(pipeline: Any, *_: Any, **__: Any) -> None:
    """Make the encoders of a pipeline that SGLang runs by diffusers take their outputs from the store."""
    conditioning = Conditioning(_client(), timeout_s=30.0)
    conditioning.add_all(pipeline)
    _PIPELINES.append(conditioning)
    _LOG.info("mmcached: outputs of %d encoders of diffusers are shared", conditioning.num_encoders)


@functools.cache
def _conditioning() -> StageConditioning:
    return StageConditioning(_client())


@functools.cache
def _client() -> Client:
    client = Client(Path(os.environ["MMCACHED_CONDITIONING"]), name="sglang-diffusion")
    _LOG.info("mmcached: conditioning is shared through %s", client.run_dir)
    return client


class StageConditioning(SharedCalls):
    """Answers what SGLang's conditioning cache does not have."""

    def __init__(self, client: Client, *, timeout_s: float = 30.0) -> None:
        super().__init__(client, timeout_s=timeout_s)
        self._encoders: weakref.WeakKeyDictionary[Any, _NamedEncoder] = weakref.WeakKeyDictionary()
        self._stages: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def of_call(
        self, compute: Callable[[], Any], model: Any, stage: Any, asked: tuple[str, Any, dict[str, Any]]
    ) -> Any:
        """Return what a call of an encoder's method computes.

        Args:
            stage: The stage that uses the encoder's output; None if the output is the encoder's own.
            asked: The name of the method, and its arguments.
        """
        key = self._key(model, stage, asked)
        if key is None:
            self.bypass()
            return compute()
        made: list[Any] = []

        def record(output: Any) -> dict[str, Any]:
            made.append(output)
            return record_of(output)

        try:
            return self.answer(
                key,
                compute,
                record=record,
                output=output_of,
                check=check_record,
                device=_local_device(),
                note_made=lambda key: None,
            )
        except NotDescribed as error:
            self.say(f"an output of {type(model).__name__} has {error}")
            return made[0]

    def forget(self, parameters: set[int] | None) -> None:
        """Forget the names of encoders with one of these parameters, by `id`; of all encoders if it is None."""
        for model in list(self._encoders):
            if parameters is None or any(id(each) in parameters for each in model.parameters()):
                del self._encoders[model]

    def close(self) -> None:
        """Forget all names; the client belongs to the caller."""
        self.forget(None)

    def _key(self, model: Any, stage: Any, asked: tuple[Any, ...]) -> str | None:
        """Return the key of a call; None if it is not shared."""
        try:
            named = self._encoders.get(model)
            if named is None or named.code.is_changed(model):
                named = self._encoders[model] = _NamedEncoder(model)
            if named.code.obstacle is not None:
                self.say(named.code.obstacle)
                return None
            if not is_run_unchanged(model.modules()):
                return None
            content = Content()
            content.add("stage", None if stage is None else self._stage(stage))
            for name, part in zip(("method", "args", "kwargs"), asked, strict=True):
                _add(content, name, part)
            name = note_name(self._client.run_dir, named.rows())
        except Exception as error:  # no name describes them, or a weight cannot be read
            self.say(f"{type(error).__name__}: {error}")
            return None
        return f"conditioning/{name}/{content.hexdigest()}"

    def _stage(self, stage: Any) -> str:
        """Return a description of a stage, and of the configuration of the pipeline that it follows."""
        if stage not in self._stages:
            from sglang.multimodal_gen.runtime.server_args import get_global_server_args

            config = get_global_server_args().pipeline_config
            self._stages[stage] = repr([f"{type(stage).__module__}.{type(stage).__qualname__}", _described(config)])
        return self._stages[stage]


class _NamedEncoder:
    """The weights and the code of an encoder, as they were read; InvalidRequest if weights cannot be read."""

    def __init__(self, model: Any) -> None:
        if any(getattr(each, "layerwise_offload_managers", None) for each in model.modules()):
            raise InvalidRequest("model", type(model).__name__, "must not be offloaded by layers")
        self.weights = Weights(model, frozenset()).digest
        self.code = EngineCode(model, frozenset(), "")
        self._config = repr(_described(getattr(model, "config", None)))
        self._libraries = library_row((*packages_of(model), "sglang"))
        self._variables = computing_variables()
        self._kind = type(model)

    def rows(self) -> dict[str, Any]:
        """Return the rows of the name of outputs computed now."""
        device = _local_device()
        return {
            "host": "sglang diffusion",
            "weights": self.weights,
            "model": self._config,
            "processor": None,  # the key has what the encoder gets
            "code": self.code.digest,
            "dtype": autocast_row(device.type),
            "attention": None,  # settings of modules
            "device": device_row(device),
            "threads": threads_row(device.type),
            "libraries": self._libraries,
            "variables": self._variables,
            "precision": precision_row(device.type),
            # calls of several ranks, and compiled encoders, are bypassed; the rest is in classes and settings
            **dict.fromkeys(("ranks", "compilation", "quantization", "adapters")),
            "batching": "alone",
        }


def _local_device() -> torch.device:
    from sglang.multimodal_gen.runtime.distributed import get_local_torch_device

    device: torch.device = get_local_torch_device()
    return device


def _add(content: Content, name: str, value: Any) -> None:
    """Add an argument of a call; NotDescribed if its content is not known."""
    if type(value) in (list, tuple):
        content.add(f"{name} {type(value).__name__}", len(value))
        for place, each in enumerate(value):
            _add(content, f"{name}.{place}", each)
    elif isinstance(value, dict):
        content.add(f"{name} dict", len(value))
        for key, each in value.items():
            _add(content, f"{name}.{key!r}", each)
    elif isinstance(value, str) and name.endswith(".'device'") and (found := _DEVICE.fullmatch(value)):
        content.add(name, found[1])  # not its number: processes of other devices of the kind share
    elif isinstance(value, torch.device):
        content.add(name, value.type)
    elif type(value) is torch.Tensor and value.layout == torch.strided and not value.requires_grad:
        content.add(name, value)
        content.add(f"{name} strides", list(value.stride()))
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        content.add(name, value)
    elif isinstance(value, Image.Image):
        content.add(name, "image")
        add_image(content, value)
    elif isinstance(value, torch.dtype):
        content.add(name, str(value))
    elif type(value) in (type(None), bool, int, float, str, bytes):
        content.add(f"{name} {type(value).__name__}", value)
    else:
        raise NotDescribed(f"an argument that is a {type(value).__qualname__}")


def _described(value: Any) -> Any:
    """Return a configuration as nested lists: its classes, functions and values; NotDescribed if it has others."""
    if is_dataclass(value) and not isinstance(value, type):
        parts = [[field.name, _described(getattr(value, field.name))] for field in fields(value)]
        return [type(value).__qualname__, parts]
    if isinstance(value, dict):
        return [[str(name), _described(each)] for name, each in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        parts = [_described(each) for each in value]
        return parts if isinstance(value, list | tuple) else sorted(map(repr, parts))
    if isinstance(value, FunctionType):
        bound = [cell.cell_contents for cell in value.__closure__ or ()], value.__defaults__, value.__kwdefaults__
        return [value.__module__, value.__qualname__, text_of(value.__code__), _described(bound)]
    if isinstance(value, functools.partial):
        return [_described(value.func), _described(value.args), _described(value.keywords)]
    if isinstance(value, Enum):
        return [type(value).__qualname__, value.name]
    if isinstance(value, type(None) | bool | int | float | str | bytes | torch.dtype):
        return repr(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, torch.Tensor):
        content = Content()
        content.add("tensor", value)
        return content.hexdigest()
    if hasattr(value, "to_dict"):
        return [type(value).__qualname__, _described(value.to_dict())]
    raise NotDescribed(f"a configuration with a {type(value).__qualname__}")
