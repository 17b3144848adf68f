"""Reads the tower of an SGLang engine: the content of its weights, as they are in the process now.

    parameters outside the language model ──all bytes, blake3──> digest

The language model is a child of the model with a usual name, unless code behind `get_…_feature` names it: then items
have some of its weights. Of a model without such a child every parameter counts.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from mmcached.integrations.method_code import names_behind
from mmcached.integrations.tensor_parts import plain_parts
from mmcached.worker.encoders.content import Content

_LANGUAGE = frozenset({"language_model", "model", "llm", "lm_head"})
_FEATURES = ("get_image_feature", "get_video_feature", "get_audio_feature")
_RUNNERS: list[weakref.ref[Any]] = []
"""The engine's own model runner, once it has loaded its model."""


def note_runner(result: Any, runner: Any, *arguments: Any, **named: Any) -> None:
    """Remember the runner that has loaded the engine's model; SGLang calls this."""
    if not getattr(runner, "is_draft_worker", False):
        _RUNNERS[:] = [weakref.ref(runner)]


def known_runner() -> Any:
    """Return the runner of this process's engine; None without one."""
    return _RUNNERS[0]() if _RUNNERS else None


def is_loaded(runner: Any) -> bool:
    """Return whether a runner has all weights: it may load them while it starts."""
    return getattr(runner, "startup_weight_load", None) is None


def tower_digest(model: torch.nn.Module) -> str:
    """Return the digest of a model's tower; raises what reading a weight raises."""
    of_text = language_names(type(model))
    content = Content(is_vast=True)
    for name, value in sorted(model.state_dict(keep_vars=True).items()):
        if name.partition(".")[0] in of_text:
            continue
        for index, part in enumerate(plain_parts(value.data)):
            content.add(f"{name} {index}", part)
    return content.hexdigest()


def language_names(kind: type) -> frozenset[str]:
    """Return the usual names of a language model that no code behind a model's features names."""
    return _LANGUAGE - set(names_behind(kind, _FEATURES))
