"""What a request will be answered with, gathered step by step: hidden states row by row, embeddings item by item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmcached.wire.channels import Frame
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import HiddenRows, ItemEmbedding
from mmcached.wire.messages.parts import Tensor


@dataclass(slots=True)
class HiddenAnswer:
    """Rows `0 … num_rows - 1` of one request, as bytes.

    A resumed request computes rows again, so rows that come for a position replace all from that position on.
    """

    dtype: str = ""
    width: int = 0
    row_bytes: int = 0
    data: bytearray = field(default_factory=bytearray)

    @property
    def num_rows(self) -> int:
        return len(self.data) // self.row_bytes if self.row_bytes else 0

    def put(self, rows: HiddenRows, payload: Sequence[Frame]) -> None:
        """Append the rows of one step.

        Raises:
            InvariantError: they do not start where earlier ones end, or before: a row would be made up.
        """
        num_rows, width = rows.tensor.shape
        frame = payload[rows.tensor.frame]
        if not self.row_bytes and num_rows:
            self.dtype, self.width, self.row_bytes = rows.tensor.dtype, width, len(frame) // num_rows
        if rows.first_position > self.num_rows:
            raise InvariantError(f"rows from {rows.first_position} on, but only {self.num_rows} are there")
        del self.data[rows.first_position * self.row_bytes :]
        self.data += frame

    def tensor(self, frame: int) -> Tensor:
        return Tensor(frame, self.dtype, (self.num_rows, self.width))


class Answers:
    """The unfinished answers of all requests that want tensors."""

    def __init__(self) -> None:
        self._hidden: dict[int, HiddenAnswer] = {}
        self._embeddings: dict[int, dict[int, tuple[Tensor, bytes]]] = {}

    def put_hidden(self, rows: HiddenRows, payload: Sequence[Frame]) -> None:
        self._hidden.setdefault(rows.request_id, HiddenAnswer()).put(rows, payload)

    def put_embedding(self, item: ItemEmbedding, payload: Sequence[Frame]) -> None:
        of_request = self._embeddings.setdefault(item.request_id, {})
        of_request[item.index] = (item.tensor, bytes(payload[item.tensor.frame]))

    def take_hidden(self, request_id: int, num_rows: int) -> HiddenAnswer:
        """Remove and return the hidden states of a finished request.

        Raises:
            InvariantError: not exactly `num_rows` rows have come.
        """
        answer = self._hidden.pop(request_id, HiddenAnswer())
        if answer.num_rows != num_rows:
            raise InvariantError(f"request {request_id}: {answer.num_rows} hidden rows, expected {num_rows}")
        return answer

    def take_embeddings(self, request_id: int, num_items: int) -> tuple[list[Tensor], list[Frame]]:
        """Remove and return the embeddings of a finished request, in item order, with their frames.

        Raises:
            InvariantError: an item's embedding has not come.
        """
        items = self._embeddings.pop(request_id, {})
        if sorted(items) != list(range(num_items)):
            raise InvariantError(f"request {request_id}: embeddings of items {sorted(items)}, expected {num_items}")
        tensors = [Tensor(index, items[index][0].dtype, items[index][0].shape) for index in range(num_items)]
        frames: list[Frame] = [items[index][1] for index in range(num_items)]
        return tensors, frames

    def forget(self, request_id: int) -> None:
        self._hidden.pop(request_id, None)
        self._embeddings.pop(request_id, None)
