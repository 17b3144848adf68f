"""What a request will be answered with, gathered step by step: hidden states row by row, embeddings item by item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmcached.engine.request import Request
from mmcached.wire.channels import Frame
from mmcached.wire.errors import InvariantError
from mmcached.wire.messages.engine import ItemEmbedding
from mmcached.wire.messages.parts import Rows, Tensor


@dataclass(slots=True)
class GatheredRows:
    """Rows of one request and key from position `first` on, without a gap, as bytes.

    What comes for a position that has come before, as after a resumption, is the same, and left out.
    """

    first: int
    dtype: str = ""
    width: int = 0
    row_bytes: int = 0
    data: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        return self.first + (len(self.data) // self.row_bytes if self.row_bytes else 0)

    def put(self, rows: Rows, payload: Sequence[Frame]) -> None:
        """Append the rows of one step.

        Raises:
            InvariantError: they do not start where earlier ones end, or before: a row would be made up.
        """
        num_rows, width = rows.tensor.shape
        frame = memoryview(payload[rows.tensor.frame])
        if not self.row_bytes and num_rows:
            self.dtype, self.width, self.row_bytes = rows.tensor.dtype, width, frame.nbytes // num_rows
        if rows.first > self.end:
            raise InvariantError(f"{rows.key}: rows from {rows.first} on, but only those before {self.end} are there")
        self.data += frame[(self.end - rows.first) * self.row_bytes :]

    def tensor(self, frame: int) -> Tensor:
        return Tensor(frame, self.dtype, (self.end - self.first, self.width))


class Answers:
    """The unfinished answers of all requests that want tensors."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, GatheredRows]] = {}
        self._embeddings: dict[int, dict[int, tuple[Tensor, bytes]]] = {}

    def put_rows(self, request_id: int, rows: Rows, payload: Sequence[Frame]) -> None:
        """Take rows of a key; the first that come are the first that are wanted.

        Raises:
            InvariantError: a row would be made up.
        """
        of_request = self._rows.setdefault(request_id, {})
        gathered = of_request.get(rows.key)
        if gathered is None:
            gathered = of_request[rows.key] = GatheredRows(rows.first)
        gathered.put(rows, payload)

    def put_embedding(self, item: ItemEmbedding, payload: Sequence[Frame]) -> None:
        of_request = self._embeddings.setdefault(item.request_id, {})
        of_request[item.index] = (item.tensor, bytes(payload[item.tensor.frame]))

    def take_rows(self, request: Request) -> tuple[list[Rows], list[Frame]]:
        """Remove and return the rows of a finished generation, in the order of its keys, with their frames.

        Raises:
            InvariantError: they are not exactly those that are wanted. The last sampled token was never computed, so it
                has no row.
        """
        gathered = self._rows.pop(request.request_id, {})
        if request.rows is None:
            return [], []
        first, end = request.rows.first_wanted, request.num_tokens - 1
        parts: list[Rows] = []
        for key in request.rows.keys:
            found = gathered.get(key, GatheredRows(first))
            if (found.first, found.end) != (first, end):
                where = f"request {request.request_id}: {key} of positions {found.first} to {found.end}"
                raise InvariantError(f"{where}, expected {first} to {end}")
            parts.append(Rows(key, first, found.tensor(len(parts))))
        frames: list[Frame] = [bytes(gathered[part.key].data) if part.key in gathered else b"" for part in parts]
        return parts, frames

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
        self._rows.pop(request_id, None)
        self._embeddings.pop(request_id, None)
