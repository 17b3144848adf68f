"""The stream of one generation: tokens and rows that wait for the client, and the client's windows."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmcached.cache.checkpoints.answer_text import AnswerText
from mmcached.wire.row_pieces import RowPieces


@dataclass(slots=True, eq=False)
class OpenStream:
    """The stream of one generation.

    Attributes:
        window: Maximum number of tokens that are sent and not confirmed.
        row_window_bytes: The same for rows, in bytes.
        rows: Waiting rows by key; empty if all rows come with the answer.
        text: Text of the committed tokens, if there is a tokenizer.
        num_sent, num_taken: Number of tokens sent, and confirmed by the client.
        waiting, waiting_text: Tokens that are not sent yet, and the text that has become certain with them.
        num_row_bytes_sent, num_row_bytes_taken: Bytes of rows of all keys.
    """

    peer: bytes
    request_id: int
    window: int
    row_window_bytes: int
    rows: dict[str, RowPieces]
    text: AnswerText | None = None
    num_sent: int = 0
    num_taken: int = 0
    waiting: list[int] = field(default_factory=list)
    waiting_text: str = ""
    num_row_bytes_sent: int = 0
    num_row_bytes_taken: int = 0

    @property
    def num_committed(self) -> int:
        return self.num_sent + len(self.waiting)

    @property
    def can_send(self) -> bool:
        return (
            self.num_sent - self.num_taken < self.window
            and self.num_row_bytes_sent - self.num_row_bytes_taken < self.row_window_bytes
            and bool(self.waiting or any(map(len, self.rows.values())))
        )

    def add(self, token_ids: list[int]) -> None:
        """Add committed tokens to the waiting ones."""
        self.waiting += token_ids
        if self.text is not None:
            self.waiting_text += self.text.add(token_ids)

    def sent(self) -> None:
        self.num_sent += len(self.waiting)
        self.waiting, self.waiting_text = [], ""
        for pieces in self.rows.values():
            self.num_row_bytes_sent += pieces.num_bytes
            pieces.hand_on()
