"""Joins what a stream brings: each token and each row once and in order, without a gap."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch

from mmcached.client import Generation, RowRange
from mmcached.client.results import Piece


@dataclass
class Joined:
    """What a stream has brought so far. Taking a piece checks that it goes on where the last one ended.

    Attributes:
        came: of each range of rows its first position, and how many tokens had come before it.
        generation: the last piece.
    """

    first: int = 0
    keys: list[str] = field(default_factory=lambda: ["hidden_states"])
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    came: list[tuple[int, int]] = field(default_factory=list)
    generation: Generation | None = None

    def __post_init__(self) -> None:
        self.parts: dict[str, list[RowRange]] = {key: [] for key in self.keys}

    @property
    def num_ranges(self) -> int:
        """The number of ranges that each key has had at least."""
        return min(map(len, self.parts.values()))

    def take(self, piece: Piece) -> None:
        assert self.generation is None
        match piece:
            case RowRange():
                self.came.append((piece.first, len(self.tokens)))
                self._take_rows(piece)
            case Generation():
                self.generation = piece
                assert (self.tokens, self.text) == (piece.tokens, piece.text)
                assert list(piece.rows) == self.keys
                for rows in piece.rows.values():
                    self._take_rows(rows)
            case _:
                self.tokens += piece
                self.text += piece.text

    def _take_rows(self, rows: RowRange) -> None:
        parts = self.parts[rows.key]
        assert rows.first == (parts[-1].end if parts else self.first)
        parts.append(rows)

    def whole(self) -> Generation:
        """Return the generation with all rows; the stream must have ended, with a row for each position."""
        assert self.generation is not None, "a stream without an end"
        end = self.generation.num_prompt_tokens + len(self.tokens) - 1
        rows = {}
        for key, parts in self.parts.items():
            assert parts[-1].end == end
            rows[key] = RowRange(key, self.first, torch.cat([part.tensor for part in parts]))
        return replace(self.generation, rows=rows)
