"""Random workloads in which photographs and prefixes repeat, and playing one against a service."""

from __future__ import annotations

import asyncio
import io
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from PIL import Image

from mmcached.client import AsyncClient, Generation


@dataclass(frozen=True)
class Ask:
    """One request: a generation, or with `prompt` None an encoding."""

    prompt: str | None
    photos: tuple[int, ...]
    max_tokens: int
    hidden_states: bool


Answer = Generation | list[torch.Tensor]


@cache
def photo(index: int) -> bytes:
    """The `index`-th of a few small photographs; sizes differ, so do their patch counts."""
    rng = random.Random(index)
    width, height = 40 + 30 * (index % 4), 40 + 20 * (index % 3)
    image = Image.frombytes("RGB", (width, height), rng.randbytes(3 * width * height))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def random_rounds(seed: int, *, num_rounds: int = 1, width: int = 6) -> list[list[Ask]]:
    """Return rounds of requests that are sent all at once; photographs and prefixes repeat in and across rounds."""
    rng = random.Random(seed)
    openings = ["Tell me about this: ", "A shared beginning that is a good deal longer than a block or two of tokens. "]
    rounds = []
    for _ in range(num_rounds):
        asks: list[Ask] = []
        for _ in range(width):
            kind = rng.random()
            if asks and kind < 0.25:
                asks.append(rng.choice(asks))  # the very same request within one step
                continue
            photos = tuple(rng.randrange(5) for _ in range(rng.randrange(1 if kind > 0.85 else 0, 4)))
            if kind > 0.85:
                asks.append(Ask(None, photos, 0, False))
                continue
            marks = "".join(f"<image>{rng.choice(['', ' and ', ' beside '])}" for _ in photos)
            text = rng.choice(openings) + marks + "x" * rng.randrange(40)
            asks.append(Ask(text, photos, rng.choice([1, 4, 12, 50]), rng.random() < 0.7))
        rounds.append(asks)
    # Short prompts with long answers, all at once: these outgrow a small KV pool after they were admitted.
    rounds.append([Ask(f"{seed} and {index}: go on", (), 40, True) for index in range(6)])
    return rounds


async def play(run_dir: Path, rounds: list[list[Ask]]) -> list[Answer]:
    """Play the rounds one after the other, the requests of one all at once."""
    answers: list[Answer] = []
    async with AsyncClient(run_dir) as client:
        for asks in rounds:
            answers += await asyncio.gather(*(_ask(client, ask) for ask in asks))
    return answers


async def _ask(client: AsyncClient, ask: Ask) -> Answer:
    images = [photo(index) for index in ask.photos]
    if ask.prompt is None:
        return await client.encode(images)
    return await client.generate(ask.prompt, images, ask.max_tokens, hidden_states=ask.hidden_states)


def assert_same(ours: list[Answer], wanted: list[Answer]) -> None:
    """Every token, embedding and hidden state is the same, bit for bit."""
    assert len(ours) == len(wanted)
    for index, (a, b) in enumerate(zip(ours, wanted, strict=True)):
        if isinstance(a, Generation) and isinstance(b, Generation):
            assert a.tokens == b.tokens, f"tokens of answer {index}"
            assert a.finish_reason == b.finish_reason
            assert a.num_prompt_tokens == b.num_prompt_tokens
            assert (a.hidden_states is None) == (b.hidden_states is None)
            if a.hidden_states is not None and b.hidden_states is not None:
                assert a.hidden_states.shape[0] == a.num_prompt_tokens + len(a.tokens) - 1
                assert torch.equal(a.hidden_states, b.hidden_states), f"hidden states of answer {index}"
        else:
            assert isinstance(a, list)
            assert isinstance(b, list)
            assert len(a) == len(b)
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), f"embeddings of answer {index}"
