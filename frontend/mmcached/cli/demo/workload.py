"""The demo's workload: several users who talk about photographs, turn by turn, each turn on top of all that was said
before; at the end each of them wants the embeddings of all photographs.

Photographs repeat within a conversation and across users; all prompts start with the same words, and each turn's prompt
starts with the whole former turn. Nothing is random: two plays differ only in how the requests of several users fall
together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mmcached.cli.demo.photos import Photo
from mmcached.client import AsyncClient, Generation
from mmcached.wire.vocabulary import BEGIN_TOKEN_ID, IMAGE_TOKEN_ID

if TYPE_CHECKING:
    import torch

SYSTEM = (
    "You are a careful guide. People show you photographs and ask about what they see. "
    "Look closely, say what is certain before what is likely, and keep it short.\n"
)
QUESTIONS = (
    "What is in this picture?",
    "And how does this one compare with it?",
    "Which of them was taken indoors?",
    "Look again, closer. What did we miss?",
)
REPLY_TOKENS = 12
PAGE = 6
"""Photographs of one request for embeddings."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One user's words at one time; `photos` are new in this turn."""

    text: str
    photos: Sequence[Photo]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that a play has produced, in an order that does not depend on timing.

    Attributes:
        embeddings: of all photographs, for each user; the first user's are in the photographs' order.
    """

    generations: list[Generation]
    embeddings: list[torch.Tensor]


def conversations(photos: Sequence[Photo], num_users: int, num_turns: int) -> list[list[Turn]]:
    """Return each user's turns. Neighbouring users look at overlapping photographs."""
    users = []
    for user in range(num_users):
        turns = []
        for turn in range(num_turns):
            shown = [photos[(2 * (user // 2) + 3 * turn) % len(photos)]]
            if turn == 0:
                shown.append(photos[(2 * user + 1) % len(photos)])
            if turn == num_turns - 1:
                shown.append(photos[2 * (user // 2) % len(photos)])  # "look again": shown in the first turn already
            turns.append(Turn(f"User {user}: {QUESTIONS[turn % len(QUESTIONS)]}", shown))
        users.append(turns)
    return users


def pages(photos: Sequence[Photo], user: int) -> list[Sequence[Photo]]:
    """Return in which order a user wants the embeddings of all photographs: each begins with another page."""
    all_pages = [photos[start : start + PAGE] for start in range(0, len(photos), PAGE)]
    first = user % len(all_pages)
    return all_pages[first:] + all_pages[:first]


def num_requests(users: Sequence[Sequence[Turn]], photos: Sequence[Photo]) -> int:
    return sum(len(turns) + len(pages(photos, 0)) for turns in users)


async def play(
    run_dir: Path, users: Sequence[Sequence[Turn]], photos: Sequence[Photo], advance: Callable[[], None]
) -> Outcome:
    """Play all conversations at once; `advance` is called after each answer.

    Raises:
        MmcachedError: a request failed.
    """
    async with AsyncClient(run_dir) as client:
        parts = await asyncio.gather(
            *(_converse(client, turns, pages(photos, user), advance) for user, turns in enumerate(users))
        )
    return Outcome(
        generations=[generation for generations, _ in parts for generation in generations],
        embeddings=[embedding for _, embeddings in parts for embedding in embeddings],
    )


async def _converse(
    client: AsyncClient, turns: Sequence[Turn], album: Sequence[Sequence[Photo]], advance: Callable[[], None]
) -> tuple[list[Generation], list[torch.Tensor]]:
    tokens = [BEGIN_TOKEN_ID, *SYSTEM.encode()]
    images: list[bytes] = []
    generations = []
    for turn in turns:
        images += [photo.data for photo in turn.photos]
        tokens += [*turn.text.encode(), *[IMAGE_TOKEN_ID] * len(turn.photos), *b"\nGuide: "]
        generation = await client.generate(tokens, images, REPLY_TOKENS, hidden_states=True)
        generations.append(generation)
        tokens = [*tokens, *(token for token in generation.tokens if token < BEGIN_TOKEN_ID), *b"\n"]
        advance()
    embeddings = []
    for page in album:
        embeddings += await client.encode([photo.data for photo in page])
        advance()
    return generations, embeddings
