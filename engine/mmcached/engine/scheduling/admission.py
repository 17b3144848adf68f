"""Admission check: rejects requests that can never be served under this configuration.

An admitted request can finish: each item fits into one step's encoder budget and into the empty encoder cache, and all
tokens fit into the empty KV pool.
"""

from __future__ import annotations

from mmcached.engine.steps.request import Request
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import InvalidRequest


def check_request(request: Request, config: ServiceConfig, max_embeds_per_item: int) -> None:
    """Raise `InvalidRequest`, with field, value and limit, if a request can never be served.

    Args:
        max_embeds_per_item: The encoder budget of a step.
    """
    if config.disable_chunked_mm_input and request.kind == "generate":
        max_embeds_per_item = min(max_embeds_per_item, config.max_num_batched_tokens)
    sizes: dict[str, int] = {}
    for index, feature in enumerate(request.features):
        field = f"features[{index}].num_embeds"
        if not 1 <= feature.num_embeds <= max_embeds_per_item:
            raise InvalidRequest(field, feature.num_embeds, f"between 1 and {max_embeds_per_item} (encoder budget)")
        if sizes.setdefault(feature.mm_hash, feature.num_embeds) != feature.num_embeds:
            raise InvalidRequest(
                field, feature.num_embeds, f"an item with the same content has {sizes[feature.mm_hash]}"
            )
    if request.kind == "encode":
        if not request.features:
            raise InvalidRequest("features", 0, "at least one item to encode")
    else:
        _check_tokens(request, config)


def _check_tokens(request: Request, config: ServiceConfig) -> None:
    if request.num_prompt_tokens < 1:
        raise InvalidRequest("prompt_token_ids", 0, "at least one token")
    if request.max_tokens < 1:
        raise InvalidRequest("max_tokens", request.max_tokens, "at least 1")
    if request.num_prompt_tokens + request.max_tokens > config.max_model_len:
        total = request.num_prompt_tokens + request.max_tokens
        raise InvalidRequest("prompt_token_ids + max_tokens", total, f"max_model_len is {config.max_model_len}")
    end = 0
    for index, feature in enumerate(request.features):
        if feature.length != feature.num_embeds:
            limit = f"one placeholder for each of its {feature.num_embeds} embeddings"
            raise InvalidRequest(f"features[{index}].length", feature.length, limit)
        if not end <= feature.offset <= request.num_prompt_tokens - feature.length:
            limit = f"in order, without overlap, inside the prompt of {request.num_prompt_tokens} tokens"
            raise InvalidRequest(f"features[{index}].offset", feature.offset, limit)
        end = feature.offset + feature.length
    if request.rows is not None:
        _check_rows(request, config)


def _check_rows(request: Request, config: ServiceConfig) -> None:
    known = config.model.row_keys
    unknown = [key for key in request.row_keys if key not in known]
    if unknown or not request.row_keys or len(set(request.row_keys)) < len(request.row_keys):
        raise InvalidRequest("rows.keys", str(list(request.row_keys)), f"at least one of {list(known)}, each once")
    if request.num_rows_delivered >= request.num_prompt_tokens:
        limit = f"must be below the prompt's length, {request.num_prompt_tokens}"
        raise InvalidRequest("rows.first", request.num_rows_delivered, limit)
