"""What becomes of a step's output that is no cached key: each request gets its part, or a copy of the whole.

    value                                   what a request gets
    tensor, as many rows as the step        its rows (1-D or more)
    any other tensor, 0-D too               a copy of the whole
    list                                    the whole list, tensors in it copied
    dict                                    a dict by these rules; None and empty dicts are left out
    anything else                           the object itself

Knows nothing of caching. Source: vllm-omni 0.22, sections of `get_merged_multimodal_states`; every copy is on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mmcached.worker.input_batch import InputBatch


def split_per_request(
    value: object,
    query_start_loc: Sequence[int] | torch.Tensor,
    input_batch: InputBatch,
    num_scheduled_tokens: Mapping[str, int],
) -> dict[str, object]:
    """Return request id -> its part of `value`, by the table above; empty for None and empty dicts."""
    total = sum(num_scheduled_tokens[req_id] for req_id in input_batch.req_ids)
    parts = {}
    for req_id in input_batch.req_ids:
        start = int(query_start_loc[input_batch.req_id_to_index[req_id]])
        part = _part(value, start, start + num_scheduled_tokens[req_id], total)
        if part is not None:
            parts[req_id] = part
    return parts


def _part(value: object, start: int, end: int, total: int) -> object | None:
    if isinstance(value, torch.Tensor):
        rows = value[start:end] if value.ndim and len(value) == total else value
        return rows.detach().cpu().clone()
    if isinstance(value, list):
        return [_copied(element) for element in value]
    if isinstance(value, Mapping):
        parts = {name: _part(inner, start, end, total) for name, inner in value.items()}
        return {name: part for name, part in parts.items() if part is not None} or None
    return value


def _copied(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, list):
        return [_copied(element) for element in value]
    if isinstance(value, Mapping):
        return {name: _copied(inner) for name, inner in value.items()}
    return value
