"""Splits outputs of a step that are not known keys: each request gets its part, or a copy of the whole.

    value                                   result for a request
    tensor, as many rows as the step        its rows (1-D or more)
    any other tensor, 0-D too               a copy of the whole
    list                                    the whole list, tensors in it copied
    dict                                    a dict by these rules; None and empty dicts are left out
    anything else                           the object itself

Knows nothing of caching. Source: vllm-omni 0.22, sections of `get_merged_multimodal_states`; every copy is on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from mmcached.compat.omni_tensor_prefix_cache.engine_batch import Step
from mmcached.wire.errors import InvalidRequest


def split_per_request(name: str, value: object, step: Step) -> dict[str, object]:
    """Return request id -> its part of `value`, by the table above; empty for None and empty dicts.

    Raises:
        InvalidRequest: Lists and dicts contain each other in a cycle or nest too deeply.
    """
    total = sum(step.counts)
    parts = {}
    try:
        on_host = _on_host(value)
        for req_id, start, count in zip(step.req_ids, step.starts, step.counts, strict=True):
            part = _part(on_host, start, start + count, total)
            if part is not None:
                parts[req_id] = part
    except RecursionError:
        raise InvalidRequest(name, type(value).__name__, "must not be nested so deeply, nor contain itself") from None
    return parts


def _on_host(value: object) -> object:
    """Return the value with its tensors on the CPU: one transfer for all requests."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, list):
        return [_on_host(element) for element in value]
    if isinstance(value, Mapping):
        return {name: _on_host(inner) for name, inner in value.items()}
    return value


def _part(value: object, start: int, end: int, total: int) -> object | None:
    if isinstance(value, torch.Tensor):
        return (value[start:end] if value.ndim and len(value) == total else value).clone()
    if isinstance(value, list):
        return [_copied(element) for element in value]
    if isinstance(value, Mapping):
        parts = {name: _part(inner, start, end, total) for name, inner in value.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    return value


def _copied(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return [_copied(element) for element in value]
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    return value
