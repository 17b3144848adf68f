"""Checks chat messages, and takes the pictures out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmcached.client.arguments import invalid, is_sequence, text_of
from mmcached.client.media_files import ImageLike
from mmcached.client.media_names import MediaName
from mmcached.wire.errors import InvalidRequest
from mmcached.wire.messages.frontend import MAX_MESSAGES
from mmcached.wire.messages.parts import ChatMessage, ContentPart

Messages = Sequence[Mapping[str, Any]]
"""Messages as Transformers' chat templates take them: `{"role": …, "content": text or a list of parts}`.

A part is `{"type": "text", "text": …}` or `{"type": "image", "image": bytes or path}`; `"name": …` beside or in place
of `"image"` names the picture, as `names` of `generate` does.
"""
_FIELDS_OF_PARTS = {"text": ({"text"},), "image": ({"image"}, {"name"}, {"image", "name"})}
Pictures = list[tuple[ImageLike | None, MediaName | None]]
"""Pictures in order: the file, and the name."""
_MAX_ROLE_CHARACTERS = 64


def checked_messages(messages: Any) -> tuple[list[ChatMessage], Pictures]:
    """Return the messages to send, and their pictures in order.

    Raises:
        InvalidRequest: Names the message, the part and the field.
    """
    if not is_sequence(messages) or not 1 <= len(messages) <= MAX_MESSAGES:
        raise invalid("messages", messages, f"a list of 1 to {MAX_MESSAGES} messages")
    pictures: Pictures = []
    return [_message(f"messages[{index}]", each, pictures) for index, each in enumerate(messages)], pictures


def _message(field: str, message: Any, pictures: Pictures) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise invalid(field, message, 'a dict of "role" and "content"')
    for name in message:
        if name not in ("role", "content"):
            raise invalid(f"{field}.{name}"[:80], message[name], 'left out: a message has "role" and "content"')
    role = text_of(message.get("role"))
    if role is None or not 1 <= len(role) <= _MAX_ROLE_CHARACTERS:
        limit = f'text of 1 to {_MAX_ROLE_CHARACTERS} characters, such as "user"'
        raise invalid(f"{field}.role", message.get("role"), limit)
    content: Any = message.get("content")
    if is_sequence(content):
        parts = [_part(f"{field}.content[{index}]", part, pictures) for index, part in enumerate(content)]
        return ChatMessage(role, parts)
    return ChatMessage(role, _text(f"{field}.content", content, "text, or a list of parts"))


def _part(field: str, part: Any, pictures: Pictures) -> ContentPart:
    if not isinstance(part, Mapping):
        raise invalid(field, part, 'a dict such as {"type": "text", "text": "…"}')
    kind = text_of(part.get("type"))
    fields = _FIELDS_OF_PARTS.get(kind or "")
    if kind is None or fields is None:
        raise invalid(f"{field}.type", part.get("type"), '"text" or "image"')
    if set(part) - {"type"} not in fields:
        limit = '"text"' if kind == "text" else '"image", "name", or both'
        raise invalid(field, sorted(map(str, part)), f'a dict of "type" and {limit}')
    if kind == "text":
        return ContentPart("text", _text(f"{field}.text", part["text"], "text"))
    file, name = part.get("image"), part.get("name")
    if file is None and name is None:
        raise InvalidRequest(f"{field}.image", "None", "bytes of an encoded file, or its pathlib.Path, or a name")
    pictures.append((file, name))
    return ContentPart("image")


def _text(field: str, value: Any, limit: str) -> str:
    text = text_of(value)
    if text is None:
        raise invalid(field, value, limit)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(field, text, "Unicode text; this one has a lone surrogate") from None
    return text
