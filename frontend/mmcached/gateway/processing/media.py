"""Puts the files of a request into the order of its prompt: each is a medium, and each medium becomes items.

An image becomes one item; a clip becomes one item for each slice: two frames of a video, a window of a sound.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import Encode, Generate
from mmcached.wire.messages.parts import ClipOptions
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.vocabulary import MODALITIES, TOKEN_IDS, Modality

_FIELDS: dict[Modality, str] = {"image": "images", "video": "videos", "audio": "audios"}


class Slice(NamedTuple):
    """An item of a medium: its content key, its number of embeddings, and its seconds in the file."""

    key: str
    num_embeds: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class Medium:
    """One file of a request.

    Attributes:
        data: The file; empty for an image given only by its id, and for a file given only by its digest.
        field: Name of the file in errors.
        name: The client's id of an image, if it gave one.
        content: Digest of a file that was not sent; "" for a file that was.
        options: Of a clip.
        file_key: Of a clip: key of its file.
        key: Of an image's item, or of the clip; "" until known.
        slices: Of a clip; empty until known.
    """

    modality: Modality
    data: Frame
    field: str
    name: str | None = None
    content: str = ""
    options: ClipOptions | None = None
    file_key: str = ""
    key: str = ""
    slices: list[Slice] = dataclasses.field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        """Keys of its items in order; empty until known."""
        if self.options is not None:
            return [each.key for each in self.slices]
        return [self.key] if self.key else []


def media_of(message: Generate | Encode, files: Sequence[Frame]) -> list[Medium]:
    """Return the files of a request in the order in which they came: images, then clips.

    Raises:
        InvalidRequest: Fewer files than clips, or another number of ids than of images, or of digests than of files; or
            a file came with its digest.
    """
    num_images = len(files) - len(message.clips)
    if num_images < 0:
        raise InvalidRequest("clips", len(message.clips), f"{len(files)} file(s) came: one for each clip")
    names = message.image_ids or [None] * num_images
    if len(names) != num_images:
        raise InvalidRequest("image_ids", len(names), f"{num_images} image(s) came: one id, or none, for each")
    media = [
        Medium("image", data, f"images[{index}]", name)
        for index, (data, name) in enumerate(zip(files, names, strict=False))
    ]
    contents = message.contents or [None] * len(files)
    if len(contents) != len(files):
        raise InvalidRequest("contents", len(contents), f"{len(files)} file(s) came: a digest, or none, for each")
    counts: Counter[Modality] = Counter()
    for options, data in zip(message.clips, files[num_images:], strict=True):
        place = f"{_FIELDS[options.modality]}[{counts[options.modality]}]"
        media.append(Medium(options.modality, data, place, options=options))
        counts[options.modality] += 1
    for medium, content in zip(media, contents, strict=True):
        if content is not None and (medium.data or medium.name is not None):
            raise InvalidRequest("contents", medium.field, "none for a file that is sent or has an id")
        medium.content = content or ""
    return media


def in_prompt_order(
    media: Sequence[Medium], token_ids: Sequence[int], marks: Mapping[Modality, int] = TOKEN_IDS
) -> list[Medium]:
    """Return media in the order of their markers, the tokens of `marks`, in a prompt that has one marker for each."""
    of_modality = {modality: iter([each for each in media if each.modality == modality]) for modality in MODALITIES}
    by_token = {token_id: of_modality[modality] for modality, token_id in marks.items()}
    return [next(by_token[token_id]) for token_id in token_ids if token_id in by_token]
