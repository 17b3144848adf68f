"""What requests are told of their results: in pieces as their steps commit, and with the answer.

    step output ──gather──> answers (rows, embeddings) ──answer──> RequestGenerated, RequestEncoded
                                └── tell_streams, with token_streams ──> TokensCommitted: one message for a step

Knows nothing of books. Invariant: each token, row and embedding is told once, in order, to the frontend that asked for
it; what its queue refuses comes with the next step, or with the answer.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import structlog

from mmcached.engine.results.answers import Answers
from mmcached.engine.results.token_streams import TokenStreams
from mmcached.engine.scheduling.step import ScheduledStep
from mmcached.engine.server.frontend_contact import FrontendContact
from mmcached.engine.steps.request import Request
from mmcached.wire.errors import ChannelFull
from mmcached.wire.messages.engine import StepOutput
from mmcached.wire.messages.frontend import RequestEncoded, RequestGenerated, TokensCommitted
from mmcached.wire.sockets.channels import Frame

log = structlog.get_logger("mmcached.engine")


class Delivery:
    """The results of one engine's unfinished requests."""

    def __init__(self, contact: FrontendContact) -> None:
        self._contact = contact
        self._answers = Answers()
        self._streams = TokenStreams()

    def open(self, request: Request, *, is_streamed: bool) -> None:
        """Expect results of a request; of a streamed generation they are told as they come."""
        if is_streamed and request.kind == "generate":
            self._streams.open(request.request_id)
            if request.rows is not None and request.rows.delivery == "delta":
                self._answers.stream_rows(request.request_id)

    def gather(self, output: StepOutput, payload: Sequence[Frame], wanted_by: Container[int]) -> None:
        """Take a step's tensors, as far as these requests are to have them.

        Raises:
            InvariantError: a row would be made up.
        """
        for made in output.rows:
            if made.request_id in wanted_by:
                self._answers.put_rows(made.request_id, made.rows, payload)
        for embedding in output.embeddings:
            if embedding.request_id in wanted_by:
                self._answers.put_embedding(embedding, payload)

    def answer(self, request: Request) -> None:
        """Tell all that was not told yet of a finished request.

        Raises:
            InvariantError: something is missing.
        """
        if request.kind == "encode":
            tensors, frames = self._answers.take_embeddings(request.request_id, len(request.features))
            self._contact.tell(RequestEncoded(request.request_id, tensors), frames)
            return
        rows, frames = self._answers.take_rows(request)
        message = RequestGenerated(
            request_id=request.request_id,
            token_ids=list(request.output_token_ids),
            finish_reason="stop" if request.finish_reason == "stop" else "length",
            num_cached_tokens=request.num_cached_tokens,
            rows=rows,
        )
        self._contact.tell(message, frames)

    def tell_streams(self, step: ScheduledStep, output: StepOutput) -> None:
        """Tell what a committed step has added to the generations that are streamed and go on."""
        if not self._streams:
            return
        streams = self._streams.untold(chunk.request for chunk in step.chunks if chunk.sample)
        rows, frames = self._answers.untold_rows(dict.fromkeys(made.request_id for made in output.rows))
        if not streams and not rows:
            return
        try:
            self._contact.channel.send(TokensCommitted(streams, rows), frames)
        except ChannelFull as error:
            log.warning("tokens and rows wait for the next step", reason=str(error))
        else:
            self._streams.told(streams)
            self._answers.rows_told(rows)

    def forget(self, request_id: int) -> None:
        """A request is answered, or over. An unknown one changes nothing."""
        self._answers.forget(request_id)
        self._streams.forget(request_id)
