"""Results of a client's calls, made from answers. Does not use sockets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from mmcached.shm.store.codec import DEFAULT_LIBRARY, MAKERS, Library
from mmcached.shm.store.tensor_bytes import TensorType
from mmcached.wire.errors import InvalidRequest, RemoteProtocolError, error_from_wire
from mmcached.wire.messages.client import Encoded, Failed, Generated, Stats, ToClient
from mmcached.wire.messages.parts import Message, Rows, Tensor, TokenLogprob
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.stats import ServiceStats

if TYPE_CHECKING:
    import torch

AnswerT = TypeVar("AnswerT", bound=Message)


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of one key of a generation: positions `first` to `end - 1`, prompt first.

    Attributes:
        tensor: `(end - first, width)`, CPU, owned; a numpy array where torch is not installed. `processor_info` names
            widths and dtypes.
        answer_index: Number of the answer, if a stream has several.
    """

    key: str
    first: int
    tensor: torch.Tensor
    answer_index: int = 0

    @property
    def end(self) -> int:
        return self.first + len(self.tensor)


class NewTokens(list[int]):
    """New tokens of a stream.

    Attributes:
        text: The text that has become certain with them. The begin of a character or of a stop string is held back, so
            it may be empty; the pieces' texts, joined, are the text of the answer.
        answer_index: Number of the answer, if a stream has several.
    """

    __slots__ = ("answer_index", "text")

    def __init__(self, token_ids: Iterable[int], text: str = "", answer_index: int = 0) -> None:
        super().__init__(token_ids)
        self.text = text
        self.answer_index = answer_index


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What a generation has used.

    Attributes:
        num_prompt_tokens: Prompt tokens after each image was replaced by its placeholders.
        num_cached_tokens: Those that came from the prefix cache.
        num_generated_tokens: Of all answers together.
        num_items: Images and slices of clips in the prompt.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_items: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation.

    Attributes:
        tokens: Generated token ids; the reference model's bytes are 0 … 255.
        finish_reason: "stop" (an end token or a stop string came) or "length".
        num_prompt_tokens: Prompt tokens after each image was replaced by its placeholders.
        num_cached_tokens: Prompt tokens that came from the prefix cache.
        logprobs: For each token its logprob, then those of the most likely tokens, if `Sampling.num_logprobs` says so.
        rows: Requested rows, by key. For a stream with delivery "delta" only rows that no `RowRange` has brought: at
            least the row that gave the last token.
        decoded: The tokens' text; None if the checkpoint has no tokenizer.
        num_items: Images and slices of clips in the prompt.
        others: The further answers, if `n` were wanted; in a stream they come by themselves.
        answer_index: Number of the answer in a stream with several.
    """

    tokens: list[int]
    finish_reason: str
    num_prompt_tokens: int
    num_cached_tokens: int
    rows: Mapping[str, RowRange] = field(default_factory=dict)
    logprobs: list[list[TokenLogprob]] = field(default_factory=list)
    decoded: str | None = None
    num_items: int = 0
    others: list[Generation] = field(default_factory=list)
    answer_index: int = 0

    @property
    def hidden_states(self) -> torch.Tensor | None:
        """The last layer's rows, or None.

        Shape `(num_prompt_tokens + len(tokens) - 1, hidden_size)` if all were requested and none was streamed. The last
        token has no row: it was never computed.
        """
        found = self.rows.get("hidden_states")
        return None if found is None else found.tensor

    @property
    def text(self) -> str:
        """The tokens as text, without special tokens, up to a stop string; bytes that are not UTF-8 become U+FFFD.

        Raises:
            InvalidRequest: The checkpoint has no tokenizer.
        """
        if self.decoded is None:
            raise InvalidRequest("text", "read", "tokens: the checkpoint has no tokenizer.json")
        return self.decoded

    @property
    def usage(self) -> TokenUsage:
        num_generated = len(self.tokens) + sum(len(each.tokens) for each in self.others)
        return TokenUsage(self.num_prompt_tokens, self.num_cached_tokens, num_generated, self.num_items)


Piece = NewTokens | RowRange | Generation
"""A piece of a stream: tokens, rows of one key, and at last the generation."""


def expect(message: ToClient, kind: type[AnswerT]) -> AnswerT:
    """Return the message if it is of the expected kind.

    Raises:
        MmcachedError: The error that the service reported.
        RemoteProtocolError: The service sent another kind of answer.
    """
    if isinstance(message, Failed):
        raise error_from_wire(message.error)
    if not isinstance(message, kind):
        raise RemoteProtocolError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message


def stats_from(message: Stats) -> ServiceStats:
    """Return the statistics of an answer; raise RemoteProtocolError if a figure has the wrong type."""
    try:
        return msgspec.convert(message.stats, ServiceStats)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(str(error), "stats") from error


def generation_from(message: Generated, payload: Sequence[Frame], saved: Sequence[memoryview] = ()) -> Generation:
    """Return the generation of an answer.

    Args:
        saved: Bytes of its `saved_rows`, in their order.
    """
    return Generation(
        tokens=message.token_ids,
        finish_reason=message.finish_reason,
        num_prompt_tokens=message.num_prompt_tokens,
        num_cached_tokens=message.num_cached_tokens,
        rows=_rows_of(message, payload, saved),
        logprobs=message.logprobs,
        decoded=message.text,
        num_items=message.num_items,
    )


def _rows_of(message: Generated, payload: Sequence[Frame], saved: Sequence[memoryview]) -> dict[str, RowRange]:
    """Return the rows of each key in one piece, copied once."""
    if not message.saved_rows:
        return {rows.key: row_range_from(rows, payload) for rows in message.rows}
    parts: dict[str, list[tuple[int, TensorType, memoryview]]] = {}
    for rows in message.rows:
        kind, data = _checked(rows.tensor, payload)
        parts.setdefault(rows.key, []).append((rows.first, kind, data))
    for named, found in zip(message.saved_rows, saved, strict=True):
        kind = TensorType.checked(named.dtype, list(named.shape), "saved_rows")
        parts.setdefault(named.key, []).append((named.first, kind, found))
    return {key: _joined(key, each) for key, each in parts.items()}


def _joined(key: str, parts: list[tuple[int, TensorType, memoryview]]) -> RowRange:
    """Join the parts of one key's rows, which overlap or are contiguous.

    Raises:
        RemoteProtocolError: The parts have a gap, or differ in dtype or row shape.
    """
    parts.sort(key=lambda part: (part[0], -part[1].shape[0]))
    first, kind, _ = parts[0]
    row_bytes = kind.nbytes // max(1, kind.shape[0])
    end, pieces = first, []
    for begin, each, data in parts:
        if (each.dtype, each.shape[1:]) != (kind.dtype, kind.shape[1:]) or data.nbytes != each.nbytes or begin > end:
            raise RemoteProtocolError(f"rows of {key!r} from {begin} on behind those before {end}", "rows")
        if begin + each.shape[0] > end:
            pieces.append(data.cast("B")[(end - begin) * row_bytes :] if data.nbytes else data)
            end = begin + each.shape[0]
    joined = bytearray().join(pieces)
    whole = TensorType.checked(kind.dtype, [end - first, *kind.shape[1:]], "rows")
    return RowRange(key, first, MAKERS[DEFAULT_LIBRARY](whole, memoryview(joined), 0, copy=False))


def row_range_from(rows: Rows, payload: Sequence[Frame]) -> RowRange:
    return RowRange(rows.key, rows.first, _owned_tensor(rows.tensor, payload))


def embeddings_from(message: Encoded, payload: Sequence[Frame], tensors: Library = DEFAULT_LIBRARY) -> list[Any]:
    """Return each image's encoder output as owned CPU tensors; None for an output named by its key in the store.

    An output is a tensor, or a dict of tensors by name if there are several.
    """
    return [
        None
        if isinstance(each, str)
        else plain({name: _owned_tensor(tensor, payload, tensors) for name, tensor in each.items()})
        for each in message.outputs
    ]


def plain(outputs: Mapping[str, Any]) -> Any:
    """Return the only tensor, or all by name if there are several."""
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def _owned_tensor(tensor: Tensor, payload: Sequence[Frame], library: Library = DEFAULT_LIBRARY) -> Any:
    return MAKERS[library](*_checked(tensor, payload), 0, copy=True)


def _checked(tensor: Tensor, payload: Sequence[Frame]) -> tuple[TensorType, memoryview]:
    if tensor.frame >= len(payload):
        raise RemoteProtocolError(f"frame {tensor.frame} of {len(payload)}", "tensor.frame")
    kind = TensorType.checked(tensor.dtype, list(tensor.shape), "tensor")
    data = memoryview(payload[tensor.frame])
    if data.nbytes != kind.nbytes:
        raise RemoteProtocolError(
            f"{data.nbytes} bytes for shape {list(tensor.shape)} of {tensor.dtype}", "tensor.shape"
        )
    return kind, data
