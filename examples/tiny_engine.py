"""A whole engine in one file: continuous batching, paged KV, prefix hits, pictures, hidden states: `tiny_engine.py`.

The scheduler, the KV cache manager, the encoder cache manager and the hidden-state cache are mmcached's; the model is a
LLaVA of Transformers, here with random weights. docs/tiny-engine.md explains it step by step.

    add ──> Scheduler.schedule ──> encode ──> compute the chunks ──> store rows ──> Scheduler.commit ──> finished
            (a step)               (pictures)  (KV pages)            (hidden states)
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import transformers

from mmcached.engine import Feature, Request, ScheduledChunk, Scheduler
from mmcached.wire.config import ServiceConfig
from mmcached.wire.messages.parts import RowsWanted
from mmcached.worker import TensorPrefixStore
from mmcached.worker.hidden_states import KeySpec, RowChunk, RowSpan

ROWS = "hidden_states"


@dataclass
class Answer:
    """What has been computed for a request so far.

    Attributes:
        hidden_states: one row for each token but the last, prompt and pictures included.
    """

    request: Request
    hidden_states: torch.Tensor

    @property
    def token_ids(self) -> list[int]:
        return self.request.output_token_ids


class KVPages:
    """Keys and values of all tokens, one row per slot; block `b` has the slots from `b * block_size` on."""

    def __init__(self, text: Any, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self._block_size = block_size
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        shape = (num_blocks * block_size, text.num_key_value_heads, size)
        self._layers = [
            (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(text.num_hidden_layers)
        ]

    def slots(self, block_ids: Sequence[int], end: int) -> torch.Tensor:
        """Return the slots of positions 0 to `end - 1`."""
        positions = torch.arange(end)
        table = torch.tensor(block_ids[: -(-end // self._block_size)])
        return table[positions // self._block_size] * self._block_size + positions % self._block_size

    def read(self, slots: torch.Tensor) -> transformers.DynamicCache:
        """Return a cache of Transformers that holds the tokens at these slots."""
        cache = transformers.DynamicCache()
        for layer, pages in enumerate(self._layers):
            if len(slots):
                cache.update(*(page[slots].transpose(0, 1)[None] for page in pages), layer)
        return cache

    def write(self, slots: torch.Tensor, cache: transformers.DynamicCache) -> None:
        """Store the last tokens of a cache at these slots."""
        for pages, computed in zip(self._layers, cache.layers, strict=True):
            for page, states in zip(pages, (computed.keys, computed.values), strict=True):
                page[slots] = states[0, :, -len(slots) :].transpose(0, 1)


class TinyEngine:
    """Serves a LLaVA model.

    Args:
        model: `LlavaForConditionalGeneration`, in evaluation mode.
        config: sizes of the caches and of a step.

    Attributes:
        num_computed: tokens computed so far, `num_encoded`: pictures encoded.
    """

    def __init__(self, model: Any, config: ServiceConfig) -> None:
        self.model = model
        self.scheduler = Scheduler(config)
        self.num_computed = self.num_encoded = 0
        text, dtype = model.config.text_config, model.dtype
        self._pages = KVPages(text, config.num_kv_blocks, config.block_size, dtype)
        self._rows = TensorPrefixStore(
            config.block_size, [KeySpec(ROWS, (text.hidden_size,), dtype)], byte_budget=config.tensor_prefix_cache_bytes
        )
        self._encoded: dict[str, torch.Tensor] = {}  # outputs of the tower that the scheduler counts on, by key
        self._pictures: dict[str, torch.Tensor] = {}  # of unfinished requests, by content
        self._answers: dict[int, Answer] = {}
        self._ids = count()

    # ---- requests

    def add(self, prompt: Sequence[int], pictures: Sequence[torch.Tensor] = (), *, max_tokens: int = 16) -> Answer:
        """Queue a request; its answer is complete when `step` has returned it.

        Args:
            prompt: token ids, with one placeholder token for each picture.
            pictures: `(3, height, width)` pixels as the model's processor returns them.
        """
        token_ids, features, rest = [], [], iter(pictures)
        for token_id in prompt:
            token_ids.append(token_id)
            if token_id == self.model.config.image_token_id:
                features.append(self._feature(next(rest), len(token_ids) - 1))
                token_ids += [token_id] * (features[-1].length - 1)
        end = self.model.generation_config.eos_token_id
        request = Request(
            next(self._ids),
            "generate",
            token_ids,
            features,
            max_tokens=max_tokens,
            rows=RowsWanted([ROWS]),
            stop_token_ids=frozenset() if end is None else {end},
        )
        self.scheduler.add_request(request)
        nothing = torch.empty(0, self.model.config.text_config.hidden_size, dtype=self.model.dtype)
        answer = self._answers[request.request_id] = Answer(request, nothing)
        return answer

    def _feature(self, picture: torch.Tensor, offset: int) -> Feature:
        """Describe a picture to the scheduler. Its name is its content: equal pictures are encoded once."""
        name = hashlib.sha256(picture.contiguous().numpy().tobytes()).hexdigest()
        self._pictures[name] = picture
        vision = self.model.config.vision_config
        length = (vision.image_size // vision.patch_size) ** 2
        return Feature(name, "image", offset, length, length, picture.nbytes, None)

    # ---- steps

    @torch.inference_mode()
    def step(self) -> list[Answer]:
        """Compute one step; return the answers that it has completed."""
        step = self.scheduler.schedule()
        if step is None:
            return []
        for key in step.freed_keys:
            del self._encoded[key]
        self._rows.release(step.released)
        for request, index, key in step.encode:
            self._encoded[key] = self._encode(self._pictures[request.features[index].mm_hash])
        computed = [self._compute(chunk) for chunk in step.chunks]
        self._keep_rows(step.chunks, computed)
        sampled = {
            chunk.request.request_id: int(self.model.lm_head(rows[-1:]).argmax())
            for chunk, rows in zip(step.chunks, computed, strict=True)
            if chunk.sample
        }
        finished = self.scheduler.commit(step, sampled, self._rows.commit())
        answers = [self._answers.pop(request.request_id) for request in finished]
        if not self._answers:
            self._pictures.clear()
        return answers

    def run(self) -> None:
        """Complete all requests."""
        while self.scheduler.has_work():
            self.step()

    def _encode(self, picture: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of a picture, `(length, hidden size)`."""
        self.num_encoded += 1
        output = self.model.model.get_image_features(pixel_values=picture[None].to(self.model.dtype))
        embeddings: torch.Tensor = output.pooler_output[0]
        return embeddings

    def _compute(self, chunk: ScheduledChunk) -> torch.Tensor:
        """Compute some tokens of one request, and store their keys and values; return their hidden states."""
        self.num_computed += chunk.num_tokens
        token_ids = torch.tensor(chunk.request.token_ids[chunk.start : chunk.end])
        embeddings = self.model.get_input_embeddings()(token_ids)
        for span in chunk.spans:
            part = self._encoded[span.key][span.start : span.start + span.length]
            embeddings[span.position : span.position + span.length] = part
        slots = self._pages.slots(chunk.block_ids, chunk.end)
        cache = self._pages.read(slots[: chunk.start])
        output = self.model.model.language_model(
            inputs_embeds=embeddings[None],
            position_ids=torch.arange(chunk.start, chunk.end)[None],
            past_key_values=cache,
        )
        self._pages.write(slots[chunk.start :], cache)
        hidden_states: torch.Tensor = output.last_hidden_state[0]
        return hidden_states

    def _keep_rows(self, chunks: Sequence[ScheduledChunk], computed: Sequence[torch.Tensor]) -> None:
        """Store the hidden states of a step, and give each answer its own, also those of its prefix hit."""
        named = []
        for chunk in chunks:
            request_id, new = chunk.request.request_id, chunk.new_hashes
            named.append(RowChunk(request_id, chunk.start, chunk.num_tokens, new.first_block, new.block_hashes))
        self._rows.write(named, {ROWS: torch.cat(list(computed))})
        for chunk, rows in zip(chunks, computed, strict=True):
            answer = self._answers[chunk.request.request_id]
            had = answer.hidden_states[: chunk.start]  # a request that starts over computes its later ones again
            if len(had) < chunk.start:
                with self._rows.read([RowSpan(chunk.request.request_id, len(had), chunk.start)], [ROWS]) as found:
                    had = torch.cat([had, found.get(ROWS, 0)])
            answer.hidden_states = torch.cat([had, rows])


def random_llava() -> Any:
    """Return a small LLaVA with random weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = transformers.LlavaConfig(
        vision_config={**sizes, "model_type": "clip_vision_model", "image_size": 56, "patch_size": 14},
        text_config={**sizes, "model_type": "llama", "vocab_size": 512, "initializer_range": 0.2},
        image_token_id=511,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    model.generation_config.eos_token_id = None
    return model.double().eval()  # doubles, so that the order of sums decides no token


if __name__ == "__main__":
    torch.set_num_threads(1)  # the model is too small for more
    model, chance = random_llava(), random.Random(0)
    picture = torch.rand(3, 56, 56)
    begin = [chance.randrange(3, 511) for _ in range(600)]  # what all questions have in common, before the picture
    questions = [[*begin, 511, *(chance.randrange(3, 511) for _ in range(20))] for _ in range(10)]
    found = {}
    for is_caching in (True, False):
        engine = TinyEngine(model, ServiceConfig(world_size=1, enable_prefix_caching=is_caching))
        start = time.perf_counter()
        answers = [engine.add(question, [picture], max_tokens=8) for question in questions]
        engine.run()
        found[is_caching] = [answer.token_ids for answer in answers]
        print(f"prefix hits {is_caching}: {engine.num_computed} tokens, {time.perf_counter() - start:.2f} s")
    print(f"the tokens are equal: {found[True] == found[False]}")
