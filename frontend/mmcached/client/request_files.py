"""Takes the files of a request from a caller's arguments: of pictures and clips beside a prompt, or in messages."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmcached.client.arguments import check_sequence, checked_image_ids, checked_prompt, invalid, is_sequence
from mmcached.client.chat import Messages, checked_messages
from mmcached.client.clips import AudioLike, VideoLike, checked_clips, files_of_clips, read_clips
from mmcached.client.media_files import ImageLike, read_images, read_required
from mmcached.client.media_names import MediaName, checked_name, shown_name
from mmcached.wire.errors import CacheMiss, InvalidRequest
from mmcached.wire.messages.parts import ChatMessage, ClipOptions


@dataclass(slots=True)
class RequestFiles:
    """The files of one request, checked but not read.

    Attributes:
        image_ids: One per image, or empty.
        names: One per file, or empty: the store key of its name's binding, and the name for people; None without one.
        clips: Options of videos, then of sounds.
        messages: A chat, with its pictures in `images`; empty without one.
    """

    images: Sequence[ImageLike | None]
    image_ids: list[str | None]
    videos: Sequence[VideoLike | None]
    audios: Sequence[AudioLike | None]
    clips: list[ClipOptions]
    names: list[tuple[str, str] | None] = field(default_factory=list)
    messages: list[ChatMessage] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        images: Sequence[ImageLike | None],
        image_ids: Sequence[str | None],
        videos: Sequence[VideoLike | None],
        audios: Sequence[AudioLike | None],
        messages: Messages | None = None,
        *,
        names: Sequence[MediaName | None] = (),
    ) -> RequestFiles:
        """Return the files of a caller's arguments.

        Raises:
            InvalidRequest: Names the argument; the files of a chat are parts of its messages.
        """
        chat: list[ChatMessage] = []
        if messages is not None:
            given = {"images": images, "image_ids": image_ids, "videos": videos, "audios": audios, "names": names}
            for field_name, values in given.items():
                check_sequence(field_name, values)
                if len(values):
                    limit = "none beside messages: pictures and their names are parts of a message"
                    raise InvalidRequest(field_name, len(values), limit)
            chat, pictures = checked_messages(messages)
            images = [file for file, _ in pictures]
            if any(name is not None for _, name in pictures):
                names = [name for _, name in pictures]
        ids, clips = checked_image_ids(image_ids, images), checked_clips(videos, audios)
        num_files = len(images) + len(videos) + len(audios)
        keys = _checked_names(names, num_files)
        if keys and ids:
            raise InvalidRequest("names", len(keys), "none beside image_ids: a file has one of the two")
        return cls(images, ids, videos, audios, clips, keys, chat)

    def checked_prompt(self, prompt: Any) -> str | list[int]:
        """Return the prompt as text or token ids; "" for messages, which come without one."""
        if not self.messages:
            return checked_prompt(prompt)
        if prompt is not None:
            raise InvalidRequest("prompt", "given", "none beside messages")
        return ""

    def read(self, known: Container[int] = ()) -> list[bytes]:
        """Return the files in the order of the request's message frames.

        Args:
            known: Indices of named files that are not needed: they are not opened, and empty here.

        Raises:
            CacheMiss: Files that are needed have a name only; names them.
        """
        if not self.names:
            files = read_images(self.images, self.image_ids)
            return files + read_clips(self.videos, self.audios) if self.videos or self.audios else files
        files, missing = [], []
        for index, (file, field_name) in enumerate(self._each()):
            name = self.names[index]
            if index in known:
                files.append(b"")
            elif file is None and name is not None:
                missing.append(name[1])
            else:
                files.append(read_required(file, field_name))
        if missing:
            raise CacheMiss(list(dict.fromkeys(missing)))
        return files

    def read_one(self, index: int) -> bytes | None:
        """Return one file; None if the caller has given none."""
        file, field_name = self._each()[index]
        return None if file is None else read_required(file, field_name)

    def _each(self) -> list[tuple[ImageLike | None, str]]:
        images = [(image, f"images[{index}]") for index, image in enumerate(self.images)]
        return [*images, *files_of_clips(self.videos, self.audios)]


def _checked_names(names: Any, num_files: int) -> list[tuple[str, str] | None]:
    limit = f"a sequence of {num_files}: a name or None for each image, then each video, then each sound"
    if not is_sequence(names):
        raise invalid("names", names, limit)
    if len(names) not in (0, num_files):
        raise InvalidRequest("names", len(names), limit)
    return [
        None if name is None else (checked_name(name, f"names[{index}]"), shown_name(name))
        for index, name in enumerate(names)
    ]
