"""The demo's workload: several users in multi-turn conversations about photographs, and one about a film and a sound.

Each turn's prompt begins with the whole former turn, and all prompts begin with the same text; photographs repeat
within a conversation and across users. At the end each user requests the embeddings of all photographs. Nothing is
random: two plays differ only in the interleaving of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcached.cli.demo.photos import Photo
from mmcached.cli.demo.prompts import PromptWriter
from mmcached.client import AsyncClient, Audio, Clip, Generation, Video
from mmcached.wire.vocabulary import Modality

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
REQUEST_S = 600.0
"""Timeout of a request on a busy host; on two idle cores it takes 5 s at most."""
PAGE = 6
"""Photographs per request for embeddings."""


@dataclass(frozen=True, slots=True)
class Files:
    images: Sequence[bytes] = ()
    videos: Sequence[Video] = ()
    audios: Sequence[Audio] = ()

    def __add__(self, more: Files) -> Files:
        return Files([*self.images, *more.images], [*self.videos, *more.videos], [*self.audios, *more.audios])

    @property
    def modalities(self) -> list[Modality]:
        files: dict[Modality, Sequence[object]] = {"image": self.images, "video": self.videos, "audio": self.audios}
        return [modality for modality, those in files.items() for _ in those]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a user: the text, and the new files."""

    text: str
    files: Files


@dataclass(frozen=True, slots=True)
class User:
    """One user's conversation, and the pages of files whose embeddings are requested at the end."""

    turns: Sequence[Turn]
    pages: Sequence[Files]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All results of a play, in an order that does not depend on timing.

    Attributes:
        embeddings: Embeddings of all photographs, for each user; the first user's are in the photographs' order. Of a
            film or a sound, those of each slice.
        num_slices: Slices of all films and sounds.
    """

    generations: list[Generation]
    embeddings: list[torch.Tensor]
    num_slices: int


def users_with_photos(photos: Sequence[Photo], num_users: int, num_turns: int) -> list[User]:
    """Return the users with photographs, which overlap between neighbouring users."""
    return [User(_turns(photos, user, num_turns), _pages(photos, user)) for user in range(num_users)]


def user_with_clips(turns: Sequence[Turn]) -> User:
    return User(turns, [sum((turn.files for turn in turns), Files())])


def _turns(photos: Sequence[Photo], user: int, num_turns: int) -> list[Turn]:
    turns = []
    for turn in range(num_turns):
        shown = [photos[(2 * (user // 2) + 3 * turn) % len(photos)]]
        if turn == 0:
            shown.append(photos[(2 * user + 1) % len(photos)])
        if turn == num_turns - 1:
            shown.append(photos[2 * (user // 2) % len(photos)])  # "look again": already shown in the first turn
        files = Files([photo.data for photo in shown])
        turns.append(Turn(f"User {user}: {QUESTIONS[turn % len(QUESTIONS)]}", files))
    return turns


def _pages(photos: Sequence[Photo], user: int) -> list[Files]:
    data = [photo.data for photo in photos]
    all_pages = [Files(data[start : start + PAGE]) for start in range(0, len(data), PAGE)]
    first = user % len(all_pages)
    return all_pages[first:] + all_pages[:first]


def num_requests(users: Sequence[User]) -> int:
    return sum(len(user.turns) + len(user.pages) for user in users)


async def play(run_dir: Path, users: Sequence[User], writer: PromptWriter, advance: Callable[[], None]) -> Outcome:
    """Play all conversations at once; `advance` is called after each answer."""
    async with AsyncClient(run_dir, timeout_s=REQUEST_S) as client:
        parts = await asyncio.gather(*(_converse(client, user, writer, advance) for user in users))
    return Outcome(
        generations=[generation for generations, _, _ in parts for generation in generations],
        embeddings=[embedding for _, embeddings, _ in parts for embedding in embeddings],
        num_slices=sum(num_slices for _, _, num_slices in parts),
    )


async def _converse(
    client: AsyncClient, user: User, writer: PromptWriter, advance: Callable[[], None]
) -> tuple[list[Generation], list[torch.Tensor], int]:
    tokens, files = [*writer.begin, *writer.encode(SYSTEM)], Files()
    generations = []
    for turn in user.turns:
        files += turn.files
        marks = [writer.marks[modality] for modality in turn.files.modalities]
        tokens += [*writer.encode(turn.text), *marks, *writer.encode("\nGuide: ")]
        generation = await client.generate(
            tokens, files.images, REPLY_TOKENS, videos=files.videos, audios=files.audios, hidden_states=True
        )
        generations.append(generation)
        said = [token for token in generation.tokens if not writer.not_text(token)]
        tokens = [*tokens, *said, *writer.encode("\n")]
        advance()
    embeddings: list[torch.Tensor] = []
    num_slices = 0
    for page in user.pages:
        for output in await client.encode(page.images, videos=page.videos, audios=page.audios):
            embeddings += tensors_of(output)
            num_slices += len(output.outputs) if isinstance(output, Clip) else 0
        advance()
    return generations, embeddings, num_slices


def tensors_of(output: Any) -> list[torch.Tensor]:
    """Return the tensors of what `encode` returns for a file: of all slices of a clip, of all levels of a tower."""
    if isinstance(output, Clip):
        return [tensor for slice_output in output.outputs for tensor in tensors_of(slice_output)]
    return list(output.values()) if isinstance(output, Mapping) else [output]
