"""What a client hands out, and how answers and images are turned into it. No sockets here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mmcached.wire.channels import Frame
from mmcached.wire.errors import EmptyImage, InvalidRequest, RemoteProtocolError
from mmcached.wire.messages.client import Encoded, Generated
from mmcached.wire.messages.parts import Rows, Tensor

if TYPE_CHECKING:
    import torch

ImageLike = bytes | str | os.PathLike[str]
"""An encoded image file: its bytes, or its path."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of one key of a generation: those of positions `first … end - 1`, prompt first.

    Attributes:
        tensor: `(end - first, hidden_size)`, int32, cpu, owned.
    """

    key: str
    first: int
    tensor: torch.Tensor

    @property
    def end(self) -> int:
        return self.first + len(self.tensor)


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation.

    Attributes:
        tokens: generated token ids; bytes are 0 … 255.
        finish_reason: "stop" (the end token came) or "length".
        num_prompt_tokens: prompt tokens after each image was replaced by its placeholders.
        num_cached_tokens: how many of them came from the prefix cache.
        rows: what was asked for, by key. Of a stream with delivery "delta" only what no `RowRange` has brought: at
            least the row that gave the last token.
    """

    tokens: list[int]
    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    rows: Mapping[str, RowRange] = field(default_factory=dict)

    @property
    def hidden_states(self) -> torch.Tensor | None:
        """Those of `rows` that are of the last layer, or None; `(num_prompt_tokens + len(tokens) - 1, hidden_size)` if
        all were wanted and none was streamed.

        The last token has no row: it was never computed.
        """
        found = self.rows.get("hidden_states")
        return None if found is None else found.tensor

    @property
    def text(self) -> str:
        """The byte tokens as text; bytes that are no UTF-8 become U+FFFD."""
        return bytes(token for token in self.tokens if token < 256).decode("utf-8", errors="replace")


Piece = list[int] | RowRange | Generation
"""What a stream yields: tokens, rows of one key, and at last the generation."""


def read_images(images: Sequence[ImageLike | None], image_ids: Sequence[str | None] = ()) -> list[bytes]:
    """Return the encoded bytes of each image, none for one that is named by its id only; nothing is decoded here.

    Args:
        image_ids: one per image, or none at all.
    Raises:
        InvalidRequest: a path that cannot be read, or neither file nor id; names its index.
        EmptyImage: a file without bytes that has an id: in the message it would look like the id alone.
    """
    data = []
    for index, image in enumerate(images):
        has_id = bool(image_ids) and image_ids[index] is not None
        content = b"" if image is None else _read(image, f"images[{index}]")
        if image is None and not has_id:
            raise InvalidRequest(f"images[{index}]", "None", "an image without an id needs its file")
        if image is not None and has_id and not content:
            raise EmptyImage(f"images[{index}]", 0, "an image has bytes; None asks for what is cached under the id")
        data.append(content)
    return data


def generation_from(message: Generated, payload: Sequence[Frame]) -> Generation:
    return Generation(
        tokens=message.token_ids,
        finish_reason=message.finish_reason,
        num_prompt_tokens=message.num_prompt_tokens,
        num_cached_tokens=message.num_cached_tokens,
        rows={rows.key: row_range_from(rows, payload) for rows in message.rows},
    )


def row_range_from(rows: Rows, payload: Sequence[Frame]) -> RowRange:
    return RowRange(rows.key, rows.first, _owned_tensor(rows.tensor, payload))


def embeddings_from(message: Encoded, payload: Sequence[Frame]) -> list[torch.Tensor]:
    """One int32 tensor `(num_embeds, hidden_size)` per image, cpu, owned."""
    return [_owned_tensor(tensor, payload) for tensor in message.embeddings]


def _read(image: ImageLike, field: str) -> bytes:
    try:
        return image if isinstance(image, bytes) else Path(image).read_bytes()
    except OSError as error:
        raise InvalidRequest(field, str(image), f"cannot be read: {error.strerror}") from error


def _owned_tensor(tensor: Tensor, payload: Sequence[Frame]) -> torch.Tensor:
    import torch

    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise RemoteProtocolError(f"{tensor.dtype!r} is no dtype", "tensor.dtype")
    if tensor.frame >= len(payload):
        raise RemoteProtocolError(f"frame {tensor.frame} of {len(payload)}", "tensor.frame")
    count = 1
    for size in tensor.shape:
        count *= size
    data = bytearray(payload[tensor.frame])
    if len(data) != count * dtype.itemsize:
        raise RemoteProtocolError(f"{len(data)} bytes for shape {list(tensor.shape)} of {tensor.dtype}", "tensor.shape")
    if not data:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).reshape(tensor.shape)
