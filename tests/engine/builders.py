"""Requests and configurations as the tests of the books want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmcached.engine import Request
from mmcached.engine.steps.request import RequestId
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import EncoderOutput, Feature, Inline, Tensor
from mmcached.wire.model_config import ModelConfig
from mmcached.wire.vocabulary import IMAGE_TOKEN_ID


def image(mm_hash: str, offset: int, num_embeds: int) -> Feature:
    return Feature(mm_hash, "image", offset, num_embeds, num_embeds, 100, Inline(0, 0))


def inline_tensors(output: EncoderOutput) -> dict[str, Tensor]:
    """Return the tensors of an answer that names none by its key."""
    assert isinstance(output, dict), output
    return output


def generate(
    request_id: RequestId,
    prompt: Sequence[int] | int,
    features: Sequence[Feature] = (),
    *,
    max_tokens: int = 1,
    tenant: str = "",
    skip_reading_prefix_cache: bool = False,
) -> Request:
    """Return a request; a number as prompt means that many tokens found in no other request."""
    token_ids = [1_000_000 * (request_id + 1) + i for i in range(prompt)] if isinstance(prompt, int) else list(prompt)
    for feature in features:
        token_ids[feature.offset : feature.offset + feature.length] = [IMAGE_TOKEN_ID] * feature.length
    return Request(
        request_id,
        "generate",
        token_ids,
        features,
        max_tokens=max_tokens,
        tenant=tenant,
        skip_reading_prefix_cache=skip_reading_prefix_cache,
    )


def encode(request_id: int, *sizes: tuple[str, int]) -> Request:
    """Return an "encode" request for items given as (mm_hash, number of embeddings)."""
    features = [image(mm_hash, 0, num_embeds) for mm_hash, num_embeds in sizes]
    return Request(request_id, "encode", [], features, max_tokens=0)


def small_config(*, max_patches: int = 600, **changes: Any) -> ServiceConfig:
    """Return the defaults of the tests: large pools, so that a test names the one resource that it makes scarce."""
    fields: dict[str, Any] = {
        "block_size": 16,
        "num_kv_blocks": 1001,
        "max_model_len": 4096,
        "max_num_batched_tokens": 1024,
        "max_num_encoder_input_tokens": 1024,
        "encoder_cache_size": 2048,
        "model": ModelConfig(max_patches_per_image=max_patches, audio_window=max_patches),
    }
    return ServiceConfig(**(fields | changes))
