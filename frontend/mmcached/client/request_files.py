"""Takes the files of a request from a caller's arguments: of pictures and clips beside a prompt, or in messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mmcached.client.arguments import check_sequence, checked_image_ids, checked_prompt
from mmcached.client.chat import Messages, checked_messages
from mmcached.client.clips import AudioLike, VideoLike, checked_clips, read_clips
from mmcached.client.media_files import ImageLike, read_images
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.parts import ChatMessage, ClipOptions


@dataclass(slots=True)
class RequestFiles:
    """The files of one request, checked but not read.

    Attributes:
        image_ids: One per image, or empty.
        clips: Options of videos, then of sounds.
        messages: A chat, with its pictures in `images`; empty without one.
    """

    images: Sequence[ImageLike | None]
    image_ids: list[str | None]
    videos: Sequence[VideoLike]
    audios: Sequence[AudioLike]
    clips: list[ClipOptions]
    messages: list[ChatMessage] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        images: Sequence[ImageLike | None],
        image_ids: Sequence[str | None],
        videos: Sequence[VideoLike],
        audios: Sequence[AudioLike],
        messages: Messages | None = None,
    ) -> RequestFiles:
        """Return the files of a caller's arguments.

        Raises:
            InvalidRequest: Names the argument; the files of a chat are parts of its messages.
        """
        chat: list[ChatMessage] = []
        if messages is not None:
            for name, files in (("images", images), ("image_ids", image_ids), ("videos", videos), ("audios", audios)):
                check_sequence(name, files)
                if len(files):
                    raise InvalidRequest(name, len(files), "none beside messages: pictures are parts of a message")
            chat, images = checked_messages(messages)
        ids, clips = checked_image_ids(image_ids, images), checked_clips(videos, audios)
        return cls(images, ids, videos, audios, clips, chat)

    def checked_prompt(self, prompt: Any) -> str | list[int]:
        """Return the prompt as text or token ids; "" for messages, which come without one."""
        if not self.messages:
            return checked_prompt(prompt)
        if prompt is not None:
            raise InvalidRequest("prompt", "given", "none beside messages")
        return ""

    def read(self) -> list[bytes]:
        """Return the files in the order of the request's message frames."""
        files = read_images(self.images, self.image_ids)
        return files + read_clips(self.videos, self.audios) if self.videos or self.audios else files
