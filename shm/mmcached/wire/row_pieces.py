"""Buffers rows of one key of a generation that were received and not handed on yet: positions `[first, end)`.

`put` grows the end, `hand_on` moves `first` to `end`. Engine, frontend and client each hold such pieces, as the
received bytes. Positions are absolute, so repeated rows are left out. Invariant: no gap; a row is in one place and is
never made up.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.wire.errors import MissingRows, RemoteProtocolError
from mmcached.wire.messages.parts import Rows, Tensor
from mmcached.wire.sockets.frames import Frame


class RowPieces:
    """Rows `[first, end)` of one key, `num_bytes` together; `end` is the next position to receive."""

    def __init__(self, key: str, first: int) -> None:
        self.key = key
        self.first = first
        self.end = first
        self.num_bytes = 0
        self._dtype = ""
        self._row_shape: tuple[int, ...] = (0,)
        self._row_bytes = 0
        self._frames: list[Frame] = []

    def __len__(self) -> int:
        return self.end - self.first

    def put(self, rows: Rows, payload: Sequence[Frame]) -> None:
        """Append rows; those that were received before are left out.

        Raises:
            MissingRows: The rows begin behind `end`; the rows between have not come.
            RemoteProtocolError: The frame is missing, or its bytes are not `num_rows` rows of the same kind.
        """
        num_rows, *row_shape = rows.tensor.shape or (0,)
        if rows.tensor.frame >= len(payload):
            raise RemoteProtocolError(f"frame {rows.tensor.frame} of {len(payload)}", "rows.tensor.frame")
        if rows.first > self.end:
            raise MissingRows(self.key, self.end, rows.first)
        kind = rows.tensor.dtype, tuple(row_shape)
        if self._dtype and kind != (self._dtype, self._row_shape):
            raise RemoteProtocolError(f"{kind} after {(self._dtype, self._row_shape)}", "rows.tensor")
        frame = payload[rows.tensor.frame]
        row_bytes, rest = divmod(len(frame), num_rows or 1)
        if rest or (frame and not num_rows) or (num_rows and self._row_bytes not in (0, row_bytes)):
            raise RemoteProtocolError(f"{len(frame)} bytes for {num_rows} rows", "rows.tensor.shape")
        self._dtype, self._row_shape, self._row_bytes = *kind, row_bytes or self._row_bytes
        num_new = rows.first + num_rows - self.end
        if num_new <= 0:
            return
        self._frames.append(frame if num_new == num_rows else memoryview(frame)[-num_new * row_bytes :])
        self.num_bytes += num_new * row_bytes
        self.end += num_new

    def rows(self, frame: int) -> Rows:
        """Return the description of these rows for a message whose payload frame `frame` is `data()`."""
        return Rows(self.key, self.first, Tensor(frame, self._dtype, (len(self), *self._row_shape)))

    def data(self) -> Frame:
        """Return the bytes of these rows, row after row; without a copy if they came in one piece."""
        if len(self._frames) > 1:
            self._frames = [b"".join(self._frames)]
        return self._frames[0] if self._frames else b""

    def hand_on(self) -> None:
        """Drop the rows, after they were handed on."""
        self._frames = []
        self.first = self.end
        self.num_bytes = 0
