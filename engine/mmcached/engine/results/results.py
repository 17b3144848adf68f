"""The results of unfinished requests are gathered step by step, and sent in pieces or with the answer.

    step output ──gather──> here ──take_answer──> RequestGenerated, RequestEncoded: all that was not sent
                              └── unsent ──> TokensCommitted, one message for a step ── mark_sent ──> here no longer

One message carries what a step has added to all streamed generations; for 256, one for each would cost more than twenty
times as much. What a message that could not be queued carried comes with the next, or with the answer.

Knows nothing of sockets or caches. Invariant: each token, row and embedding that is wanted is sent exactly once, in
order; none is made up. (An answer repeats the tokens.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mmcached.engine.results.row_parts import RowParts
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import InvariantError, MissingRows
from mmcached.wire.messages.engine import ItemEmbedding, StepOutput
from mmcached.wire.messages.frontend import RequestEncoded, RequestGenerated, TokensCommitted
from mmcached.wire.messages.parts import EncoderOutput, RequestRows, Rows, SavedRows, StreamedTokens, Tensor
from mmcached.wire.sockets.frames import Frame


@dataclass(slots=True)
class _Gathered:
    """Tensors of one request: rows, from position `start` on, by key; header and bytes of outputs by item and name, or
    the key in the store of all of an item.
    """

    streams_rows: bool = False
    start: int | None = None
    rows: dict[str, RowParts] = field(default_factory=dict)
    outputs: dict[int, dict[str, tuple[Tensor, bytes]]] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)

    def parts_of(self, rows: Rows | SavedRows) -> RowParts:
        """Return what rows are a part of; the first that come of any key are the first that are wanted."""
        if self.start is None:
            self.start = rows.first
        if rows.key not in self.rows:
            self.rows[rows.key] = RowParts(rows.key, self.start)
        return self.rows[rows.key]


class Results:
    """The results of one engine's open requests; those of others are dropped."""

    def __init__(self) -> None:
        self._open: dict[int, _Gathered] = {}
        self._num_sent: dict[int, int] = {}  # of streamed generations, the output tokens that the frontend has

    def __len__(self) -> int:
        return len(self._open)

    @property
    def has_streams(self) -> bool:
        return bool(self._num_sent)

    def open(self, request: Request, *, is_streamed: bool) -> None:
        streams_tokens = is_streamed and request.kind == "generate"
        streams_rows = streams_tokens and request.rows is not None and request.rows.delivery == "delta"
        self._open[request.request_id] = _Gathered(streams_rows)
        if streams_tokens:
            self._num_sent[request.request_id] = 0

    def forget(self, request_id: int) -> None:
        """Drop a request that is over. An unknown one changes nothing."""
        self._open.pop(request_id, None)
        self._num_sent.pop(request_id, None)

    # ---- from the workers

    def gather(self, output: StepOutput, payload: Sequence[Frame]) -> None:
        """Take a step's tensors. Raises `InvariantError` if a row is missing before one of them."""
        for made in output.rows:
            self.put_rows(made.request_id, made.rows, payload)
        for named in output.saved_rows:
            self.put_saved_rows(named.request_id, named.rows)
        for embedding in output.embeddings:
            self.put_embedding(embedding, payload)
        for saved in output.saved:
            if (gathered := self._open.get(saved.request_id)) is not None:
                gathered.keys[saved.index] = saved.key

    def put_rows(self, request_id: int, rows: Rows, payload: Sequence[Frame]) -> None:
        """Take rows of a key; the first that come are the first that are wanted. Raises as `gather` does."""
        gathered = self._open.get(request_id)
        if gathered is None:
            return
        try:
            gathered.parts_of(rows).put(rows, payload)
        except MissingRows as error:
            raise InvariantError(f"request {request_id}: {error}") from error

    def put_saved_rows(self, request_id: int, rows: SavedRows) -> None:
        """As `put_rows`, of rows that are being put into the store."""
        gathered = self._open.get(request_id)
        if gathered is None:
            return
        try:
            gathered.parts_of(rows).put_saved(rows)
        except MissingRows as error:
            raise InvariantError(f"request {request_id}: {error}") from error

    def put_embedding(self, item: ItemEmbedding, payload: Sequence[Frame]) -> None:
        gathered = self._open.get(item.request_id)
        if gathered is not None:
            data = bytes(payload[item.tensor.frame])
            gathered.outputs.setdefault(item.index, {})[item.name] = (item.tensor, data)

    # ---- to the frontend

    def unsent(self, sampled: Iterable[Request], with_rows: Iterable[int]) -> tuple[TokensCommitted, list[Frame]]:
        """Return the message of what a step has added to streamed generations, with its frames. Changes nothing.

        Args:
            sampled: requests that have a new token.
            with_rows: ids of requests that have new rows.
        """
        num_sent = self._num_sent
        tokens = [
            StreamedTokens(request.request_id, first, request.token_ids[request.num_prompt_tokens + first :])
            for request in sampled
            if (first := num_sent.get(request.request_id)) is not None
            and request.num_prompt_tokens + first < request.num_tokens  # not if preempted in this step
        ]
        rows: list[RequestRows] = []
        frames: list[Frame] = []
        for request_id in with_rows:
            gathered = self._open.get(request_id)
            for parts in gathered.rows.values() if gathered is not None and gathered.streams_rows else ():
                if len(parts.run):
                    rows.append(RequestRows(request_id, parts.run.rows(len(frames))))
                    frames.append(parts.run.data())
        return TokensCommitted(tokens, rows), frames

    def mark_sent(self, message: TokensCommitted) -> None:
        """Note that a message is queued, before anything else is gathered."""
        for stream in message.streams:
            self._num_sent[stream.request_id] = stream.first + len(stream.token_ids)
        for part in message.rows:
            self._open[part.request_id].rows[part.rows.key].run.hand_on()

    def take_answer(self, request: Request) -> tuple[RequestGenerated | RequestEncoded, list[Frame]]:
        """Remove a finished request; return its answer, with all that was not sent, and its frames.

        Raises:
            InvariantError: a row or an embedding is missing.
        """
        gathered = self._open[request.request_id]
        self.forget(request.request_id)
        if request.kind == "encode":
            return _encoded(request, gathered)
        rows, saved_rows, frames = _remaining_rows(request, gathered)
        answer = RequestGenerated(
            request_id=request.request_id,
            token_ids=list(request.output_token_ids),
            finish_reason="stop" if request.finish_reason == "stop" else "length",
            num_cached_tokens=request.num_cached_tokens,
            rows=rows,
            saved_rows=saved_rows,
        )
        return answer, frames


def _remaining_rows(request: Request, gathered: _Gathered) -> tuple[list[Rows], list[SavedRows], list[Frame]]:
    """Return the rows that were not sent, in the order of the request's keys, those that are named, and the frames.

    The last sampled token was never computed, so it has no row.
    """
    parts: list[Rows] = []
    saved: list[SavedRows] = []
    frames: list[Frame] = []
    if request.rows is None:
        return parts, saved, frames
    first, end, start = request.rows.first_wanted, request.num_tokens - 1, gathered.start or 0
    for key in request.rows.keys:
        found = gathered.rows.get(key, RowParts(key, first))
        if (start, found.end) != (first, end):
            where = f"request {request.request_id}: {key} of positions {start} to {found.end}"
            raise InvariantError(f"{where}, expected {first} to {end}")
        saved += found.saved
        for run in found.runs():
            parts.append(run.rows(len(frames)))
            frames.append(run.data())
    return parts, saved, frames


def _encoded(request: Request, gathered: _Gathered) -> tuple[RequestEncoded, list[Frame]]:
    items, keys, num_items = gathered.outputs, gathered.keys, len(request.features)
    if sorted({*items, *keys}) != list(range(num_items)):
        found = sorted({*items, *keys})
        raise InvariantError(f"request {request.request_id}: embeddings of items {found}, expected {num_items}")
    outputs: list[EncoderOutput] = []
    frames: list[Frame] = []
    for index in range(num_items):
        if index not in items:
            outputs.append(keys[index])
            continue
        named = {}
        for name, (tensor, data) in items[index].items():
            named[name] = Tensor(len(frames), tensor.dtype, tensor.shape)
            frames.append(data)
        outputs.append(named)
    return RequestEncoded(request.request_id, outputs), frames
