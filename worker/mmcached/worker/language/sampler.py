"""Chooses the next token of a request from its logits, with the logits processors of Transformers.

Each token has a random number generator of its own, seeded by the request's seed and the token's position. So a token
that is chosen again, after a worker's death, is the same.
"""

from __future__ import annotations

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from mmcached.wire.messages.engine import Sampled
from mmcached.wire.messages.parts import Sampling, TokenLogprob
from mmcached.wire.messages.worker import RunChunk

_MAX_SEED = (1 << 63) - 1
_STRIDE = 0x9E3779B97F4A7C15
"""Distance between the seeds of neighbouring positions."""


def choose(logits: torch.Tensor, chunk: RunChunk) -> Sampled:
    """Return the next token of a chunk's request, and its logprobs if they are wanted.

    Args:
        logits: `(vocabulary_size,)` float32; logprobs are of these, before any processor.
    """
    sampling = chunk.sampling
    if sampling is None:
        return Sampled(chunk.request_id, int(logits.argmax()))
    scores = processed(logits.cpu(), sampling, chunk.seen)
    if sampling.temperature:
        generator = torch.Generator()
        position = chunk.num_computed_tokens + len(chunk.token_ids)
        generator.manual_seed(((sampling.seed or 0) + position * _STRIDE) & _MAX_SEED)
        token_id = int(torch.multinomial(scores.softmax(-1), 1, generator=generator))
    else:
        token_id = int(scores.argmax())
    if sampling.num_logprobs < 0:
        return Sampled(chunk.request_id, token_id)
    logprobs = logits.cpu().log_softmax(-1)
    best = logprobs.topk(min(sampling.num_logprobs, len(logprobs))).indices.tolist()
    found = [TokenLogprob(each, float(logprobs[each])) for each in (token_id, *best)]
    return Sampled(chunk.request_id, token_id, found)


def processed(logits: torch.Tensor, sampling: Sampling, seen: list[int]) -> torch.Tensor:
    """Return the scores that a token is chosen from, in the order in which `generate` of Transformers applies them.

    Args:
        seen: Token ids of the request so far; empty without a repetition penalty.
    """
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0 and seen:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature:
        if sampling.temperature != 1.0:
            processors.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            processors.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p:
            processors.append(MinPLogitsWarper(sampling.min_p))
    scores: torch.Tensor = processors(torch.tensor([seen], dtype=torch.int64), logits[None].clone())[0]
    return scores
