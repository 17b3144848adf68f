"""Gathers the results of unfinished requests step by step; they are sent in pieces or with the answer.

    step output ──gather──> here ──take_answer──> RequestGenerated, RequestEncoded: all that was not sent
                              └── unsent ──> TokensCommitted, one message for a step ── mark_sent ──> removed here

One message carries the new results of all streamed generations of a step; for 256 generations, one message each would
cost more than twenty times as much. If the message cannot be queued, its content is sent with the next one, or with the
answer.

Invariant: each wanted token, row and embedding is sent exactly once, in order. (An answer repeats the tokens.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mmcached.engine.results.row_parts import RowParts
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import InvariantError, MissingRows
from mmcached.wire.messages.engine import ItemEmbedding, StepOutput
from mmcached.wire.messages.frontend_from_engines import RequestEncoded, RequestGenerated, TokensCommitted
from mmcached.wire.messages.parts import (
    EncoderOutput,
    RequestRows,
    Rows,
    SavedRows,
    StreamedTokens,
    Tensor,
    TokenLogprob,
)
from mmcached.wire.sockets.frames import Frame


@dataclass(slots=True)
class _Gathered:
    """Tensors of one request; `start` is the position of its first row."""

    streams_rows: bool = False
    start: int | None = None
    rows: dict[str, RowParts] = field(default_factory=dict)
    outputs: dict[int, dict[str, tuple[Tensor, bytes]]] = field(default_factory=dict)  # by item and name
    keys: dict[int, str] = field(default_factory=dict)  # key in the store by item
    logprobs: list[list[TokenLogprob]] = field(default_factory=list)  # by output token

    def parts_of(self, rows: Rows | SavedRows) -> RowParts:
        """Return the collected rows of the same key; the first rows of any key set the start of all."""
        if self.start is None:
            self.start = rows.first
        if rows.key not in self.rows:
            self.rows[rows.key] = RowParts(rows.key, self.start)
        return self.rows[rows.key]


class Results:
    """Results of one engine's open requests; results of other requests are dropped."""

    def __init__(self) -> None:
        self._open: dict[int, _Gathered] = {}
        self._num_sent: dict[int, int] = {}  # output tokens sent, by streamed generation

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

    def forget_request(self, request_id: int) -> None:
        self._open.pop(request_id, None)
        self._num_sent.pop(request_id, None)

    # ---- from the workers

    def gather(self, output: StepOutput, payload: Sequence[Frame]) -> None:
        """Add a step's tensors. Raises `InvariantError` if there is a gap before a row."""
        for made in output.rows:
            self.put_rows(made.request_id, made.rows, payload)
        for named in output.saved_rows:
            self.put_saved_rows(named.request_id, named.rows)
        set_back = {missing.request_id for missing in output.missing}  # these are sampled again
        for sampled in output.sampled:
            if sampled.logprobs and sampled.request_id not in set_back and sampled.request_id in self._open:
                self._open[sampled.request_id].logprobs.append(sampled.logprobs)
        for embedding in output.embeddings:
            self.put_embedding(embedding, payload)
        for saved in output.saved:
            if (gathered := self._open.get(saved.request_id)) is not None:
                gathered.keys[saved.index] = saved.key

    def put_rows(self, request_id: int, rows: Rows, payload: Sequence[Frame]) -> None:
        """Add rows of a key; the first rows received are the first wanted. Raises as `gather`."""
        gathered = self._open.get(request_id)
        if gathered is None:
            return
        try:
            gathered.parts_of(rows).put(rows, payload)
        except MissingRows as error:
            raise InvariantError(f"request {request_id}: {error}") from error

    def put_saved_rows(self, request_id: int, rows: SavedRows) -> None:
        """Add rows that are being put into the store, as `put_rows`."""
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
        """Return the message with a step's new results of streamed generations, and its frames. Changes nothing.

        `sampled` are the requests with a new token, `with_rows` the ids of those with new rows.
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
        """Note that a message is queued, before any other results are gathered."""
        for stream in message.streams:
            self._num_sent[stream.request_id] = stream.first + len(stream.token_ids)
        for part in message.rows:
            self._open[part.request_id].rows[part.rows.key].run.hand_on()

    def take_answer(self, request: Request) -> tuple[RequestGenerated | RequestEncoded, list[Frame]]:
        """Remove a finished request; return its answer, with everything not sent yet, and its frames.

        Raises `InvariantError` if a row or an embedding is missing.
        """
        gathered = self._open[request.request_id]
        self.forget_request(request.request_id)
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
            logprobs=gathered.logprobs,
        )
        return answer, frames


def _remaining_rows(request: Request, gathered: _Gathered) -> tuple[list[Rows], list[SavedRows], list[Frame]]:
    """Return the rows not sent yet, in the order of the request's keys, the saved rows, and the frames.

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
