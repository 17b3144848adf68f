"""A worker in miniature: computes the content of each KV slot from what it really reads, and checks that it is right.

    content(position) = digest( content(position - 1) | token, or (item, row) )      content(-1) = digest( tenant )

This is what makes a model's KV: it depends on the whole prefix and on nothing else. A chunk continues from the slot
before it, taken through the block table it was given; so a block that was never written, was overwritten, or belongs
to another prefix gives another digest than the request's own tokens, and the run fails at once. The sampled token
follows from the last digest: any mistake also shows in the answer.
"""

from __future__ import annotations

import hashlib

from mmcached.engine import Request, ScheduledChunk, ScheduledStep
from mmcached.wire.messages.parts import Feature
from mmcached.wire.vocabulary import END_TOKEN_ID

Input = int | tuple[str, int]


def contents(tenant: str, inputs: list[Input], before: bytes | None = None) -> list[bytes]:
    """Return the content of each position, continuing after `before`."""
    digest = hashlib.sha256(tenant.encode()).digest() if before is None else before
    digests = []
    for value in inputs:
        digest = hashlib.sha256(digest + repr(value).encode()).digest()
        digests.append(digest)
    return digests


def next_token(digest: bytes) -> int:
    return END_TOKEN_ID if digest[0] < 40 else digest[1] % 8


def inputs_of(token_ids: list[int], features: list[Feature]) -> list[Input]:
    """Return what is put in at each position: tokens, and for placeholders the rows of their items."""
    inputs: list[Input] = list(token_ids)
    for feature in features:
        inputs[feature.offset : feature.offset + feature.length] = [
            (feature.mm_hash, row) for row in range(feature.length)
        ]
    return inputs


def expected_output(request: Request) -> list[int]:
    """Return the answer of a generation that is alone in the world, computed in one go."""
    token_ids = request.token_ids[: request.num_prompt_tokens]
    output: list[int] = []
    while len(output) < request.max_tokens and END_TOKEN_ID not in output:
        digest = contents(request.tenant, inputs_of(token_ids + output, request.features))[-1]
        output.append(next_token(digest))
    return output


class HonestWorker:
    """Slots and encoder outputs of one worker.

    Args:
        cache_size: embeddings that the encoder cache may hold at any time.
    """

    def __init__(self, block_size: int, cache_size: int) -> None:
        self._block_size = block_size
        self._cache_size = cache_size
        self._slots: dict[tuple[int, int], bytes] = {}
        self._outputs: dict[str, tuple[str, int]] = {}  # key -> item, embeddings
        self.num_encoded = 0
        self.num_computed = 0

    def clear(self) -> None:
        self._slots.clear()
        self._outputs.clear()

    def run(self, step: ScheduledStep) -> dict[int, int]:
        """Do a step, checking each read; return the sampled tokens."""
        for key in step.freed_keys:
            self._outputs.pop(key, None)
        self._encode(step)
        for request, input_id, key in step.emit:
            assert self._outputs[key][0] == request.features[input_id].mm_hash
        written: set[int] = set()
        for chunk in reversed(step.chunks):  # what a chunk writes, those behind it may read
            assert written.isdisjoint(chunk.block_ids), "a block is written behind one that reads or writes it"
            written |= self._tail_blocks(chunk)
        return {
            chunk.request.request_id: next_token(last)
            for chunk in step.chunks
            if (last := self._compute(chunk)) and chunk.sample
        }

    def _encode(self, step: ScheduledStep) -> None:
        keys = [key for _, _, key in step.encode]
        assert len(keys) == len(set(keys)), "an output is made twice in a step"
        for request, input_id, key in step.encode:
            feature = request.features[input_id]
            self._outputs[key] = feature.mm_hash, feature.num_embeds
            self.num_encoded += 1
        assert sum(size for _, size in self._outputs.values()) <= self._cache_size

    def _tail_blocks(self, chunk: ScheduledChunk) -> set[int]:
        return set(chunk.block_ids[chunk.start // self._block_size : -(-chunk.end // self._block_size)])

    def _compute(self, chunk: ScheduledChunk) -> bytes:
        request = chunk.request
        assert 0 not in chunk.block_ids
        assert chunk.num_tokens > 0
        inputs: list[Input] = list(request.token_ids[chunk.start : chunk.end])
        for span in chunk.spans:
            item, size = self._outputs[span.key]
            assert 0 <= span.start < span.start + span.length <= size
            rows: list[Input] = [(item, row) for row in range(span.start, span.start + span.length)]
            assert len(inputs[span.position : span.position + span.length]) == span.length
            inputs[span.position : span.position + span.length] = rows
        truth = contents(request.tenant, inputs_of(request.token_ids, request.features))
        context = [self._slots.get(self._slot(chunk, position)) for position in range(chunk.start)]
        assert context == truth[: chunk.start], f"{request}: wrong context"
        computed = contents(request.tenant, inputs, before=context[-1] if context else None)
        assert computed == truth[chunk.start : chunk.end], f"{request}: wrong inputs"
        for position, digest in enumerate(computed, chunk.start):
            self._slots[self._slot(chunk, position)] = digest
        self.num_computed += len(computed)
        assert chunk.sample == (chunk.end == request.num_tokens)
        return computed[-1]

    def _slot(self, chunk: ScheduledChunk, position: int) -> tuple[int, int]:
        return chunk.block_ids[position // self._block_size], position % self._block_size
