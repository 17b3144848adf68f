"""Random workloads in which photographs, clips and prefixes repeat, and playing one against a service."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from mmcached.client import AsyncClient, Audio, Clip, Generation, Video
from tests.clips.files import sound, video


@dataclass(frozen=True)
class Ask:
    """One request: a generation, or with `prompt` None an encoding."""

    prompt: str | None
    photos: tuple[int, ...]
    max_tokens: int
    hidden_states: bool
    videos: tuple[Video, ...] = ()
    sounds: tuple[Audio, ...] = ()

    @property
    def files(self) -> dict[str, Any]:
        """What comes with the prompt, as calls of a client take it."""
        return {"images": [photo(index) for index in self.photos], "videos": self.videos, "audios": self.sounds}


Answer = Generation | Sequence[torch.Tensor | Clip]


@cache
def photo(index: int) -> bytes:
    """The `index`-th of a few small photographs; sizes differ, so do their patch counts."""
    rng = random.Random(index)
    width, height = 40 + 30 * (index % 4), 40 + 20 * (index % 3)
    image = Image.frombytes("RGB", (width, height), rng.randbytes(3 * width * height))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@cache
def film(index: int) -> bytes:
    """The `index`-th of a few small videos of 4 seconds."""
    return video(20, fps=5, seed=index)


@cache
def tune(index: int) -> bytes:
    """The `index`-th of a few sounds of 5 seconds, in stereo."""
    return sound(5.0, rate=8000, channels=2, seed=index)


def with_clips(seed: int) -> list[Ask]:
    """Return requests for videos and sounds, of which parts are in several, among photographs."""
    rng = random.Random(seed)
    whole, begin = Video(film(0)), Video(film(0), end_s=2.5)
    end, other = Video(film(0), start_s=1.0), Video(film(1), num_frames=5)
    tail = Audio(tune(0), start_s=2.0)
    asks = [
        Ask("<video> what happens?", (), 4, True, (begin,)),
        Ask("<video><image> and <audio>", (1,), 4, True, (end,), (Audio(tune(0)),)),
        Ask("<audio> twice <audio>", (), 3, False, (), (tail, tail)),
        Ask("<video> then <video>", (), 3, True, (other, whole)),
        Ask(None, (2, 0), 0, False, (whole, other), (tail,)),
        Ask(None, (), 0, False, (begin, end)),
    ]
    rng.shuffle(asks)
    return asks


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
    rounds.append(with_clips(seed))
    return rounds


async def play(run_dir: Path, rounds: list[list[Ask]]) -> list[Answer]:
    """Play the rounds one after the other, the requests of one all at once."""
    answers: list[Answer] = []
    async with AsyncClient(run_dir) as client:
        for asks in rounds:
            answers += await asyncio.gather(*(_ask(client, ask) for ask in asks))
    return answers


async def _ask(client: AsyncClient, ask: Ask) -> Answer:
    if ask.prompt is None:
        return await client.encode(**ask.files)
    return await client.generate(ask.prompt, max_tokens=ask.max_tokens, hidden_states=ask.hidden_states, **ask.files)


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
            for x, y in zip(a, b, strict=True):
                assert times_of(x) == times_of(y)
                assert torch.equal(rows_of(x), rows_of(y)), f"embeddings of answer {index}"


def rows_of(output: torch.Tensor | Clip) -> torch.Tensor:
    rows: torch.Tensor = output.joined() if isinstance(output, Clip) else output
    return rows


def times_of(output: torch.Tensor | Clip) -> list[tuple[float, float]]:
    return output.times if isinstance(output, Clip) else []
