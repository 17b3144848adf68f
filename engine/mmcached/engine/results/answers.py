"""What a request will be answered with, gathered step by step: hidden states row by row, embeddings item by item.

    rows of a step --put_rows--> gathered --take_rows--> in the answer
                                    |
                                    +--untold_rows, rows_told--> handed on, and kept no longer (`stream_rows`)

Invariant: of each key, every row that is wanted is handed on or answered exactly once, in order; none is made up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmcached.engine.steps.request import Request
from mmcached.wire.errors import InvariantError, MissingRows
from mmcached.wire.messages.engine import ItemEmbedding
from mmcached.wire.messages.frontend import CommittedRows
from mmcached.wire.messages.parts import Rows, Tensor
from mmcached.wire.row_pieces import RowPieces
from mmcached.wire.sockets.channels import Frame


class Answers:
    """The unfinished answers of all requests that want tensors."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, RowPieces]] = {}
        self._starts: dict[int, int] = {}
        self._streamed: set[int] = set()
        self._embeddings: dict[int, dict[int, tuple[Tensor, bytes]]] = {}

    # ---- rows

    def stream_rows(self, request_id: int) -> None:
        """Its rows are handed on as they come; the answer brings the rest."""
        self._streamed.add(request_id)

    def put_rows(self, request_id: int, rows: Rows, payload: Sequence[Frame]) -> None:
        """Take rows of a key; the first that come are the first that are wanted.

        Raises:
            InvariantError: a row would be made up.
        """
        start = self._starts.setdefault(request_id, rows.first)
        of_request = self._rows.setdefault(request_id, {})
        gathered = of_request.get(rows.key)
        if gathered is None:
            gathered = of_request[rows.key] = RowPieces(rows.key, start)
        try:
            gathered.put(rows, payload)
        except MissingRows as error:
            raise InvariantError(f"request {request_id}: {error}") from error

    def untold_rows(self, request_ids: Iterable[int]) -> tuple[list[CommittedRows], list[Frame]]:
        """Return what was not handed on of those of them whose rows are streamed, with its frames. Changes nothing."""
        parts: list[CommittedRows] = []
        frames: list[Frame] = []
        for request_id in request_ids:
            if request_id not in self._streamed:
                continue
            for gathered in self._rows.get(request_id, {}).values():
                if len(gathered):
                    parts.append(CommittedRows(request_id, gathered.rows(len(frames))))
                    frames.append(gathered.data())
        return parts, frames

    def rows_told(self, parts: Iterable[CommittedRows]) -> None:
        """The frontend's queue has them, and nothing has come since they were asked for."""
        for part in parts:
            self._rows[part.request_id][part.rows.key].hand_on()

    def take_rows(self, request: Request) -> tuple[list[Rows], list[Frame]]:
        """Remove and return the rows of a finished generation that were not handed on, in the order of its keys, with
        their frames.

        Raises:
            InvariantError: with those that were, they are not exactly those that are wanted. The last sampled token was
                never computed, so it has no row.
        """
        gathered = self._rows.pop(request.request_id, {})
        start = self._starts.pop(request.request_id, 0)
        if request.rows is None:
            return [], []
        first, end = request.rows.first_wanted, request.num_tokens - 1
        parts: list[Rows] = []
        frames: list[Frame] = []
        for key in request.rows.keys:
            found = gathered.get(key, RowPieces(key, first))
            if (start, found.end) != (first, end):
                where = f"request {request.request_id}: {key} of positions {start} to {found.end}"
                raise InvariantError(f"{where}, expected {first} to {end}")
            parts.append(found.rows(len(frames)))
            frames.append(found.data())
        return parts, frames

    # ---- embeddings

    def put_embedding(self, item: ItemEmbedding, payload: Sequence[Frame]) -> None:
        of_request = self._embeddings.setdefault(item.request_id, {})
        of_request[item.index] = (item.tensor, bytes(payload[item.tensor.frame]))

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
        """Drop what was gathered for a request. An unknown one changes nothing."""
        self._rows.pop(request_id, None)
        self._starts.pop(request_id, None)
        self._streamed.discard(request_id)
        self._embeddings.pop(request_id, None)
