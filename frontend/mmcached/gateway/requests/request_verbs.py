"""Serves one request as one generator, which yields its waits and returns the answer.

    keys ──> all in the store? ──> items ──> an engine ──> its answer ──> are all named records in the store? ──> answer
      └──────────── answer           ^                         │                └── no: sent again, for inline results ┐
                                     └────────── missed: sent again with the items that the engine lacks ──────────────┘

The tokens of a text or of messages are found first. A lookup is valid until the next wait, so the store and caches are
looked up again after each wait. The keys of a request do not change. Closing the generator ends the request at any
point: its `finally` blocks give back everything that it has joined, leased or counted, and tell the engine that has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcached.gateway.caches.item_cache import ItemCache
from mmcached.gateway.engines.engine_connections import EngineConnections
from mmcached.gateway.requests.encoder_outputs import EncoderOutputs, Owner, Patience
from mmcached.gateway.requests.item_making import ItemMaking
from mmcached.gateway.requests.open_requests import Answer, OpenRequest, RequestTable, Sent
from mmcached.gateway.requests.prompts import Prompts
from mmcached.gateway.requests.submission import Submission
from mmcached.gateway.requests.token_streams import TokenStreams
from mmcached.gateway.requests.waits import Verb, Wait, Waits
from mmcached.wire.config import ServiceConfig
from mmcached.wire.errors import RequestAborted
from mmcached.wire.messages import client as to_client
from mmcached.wire.messages import engine as to_engine
from mmcached.wire.messages import frontend_from_engines as received
from mmcached.wire.messages.parts import EncoderOutput
from mmcached.wire.sockets.frames import Frame

MAX_RESENDS = 2

Word = received.RequestGenerated | received.RequestEncoded | received.RequestFailed | received.RequestMissed
"""How an engine ends its part of a request."""


class RequestVerbs:
    """The verbs of one frontend.

    Attributes:
        making: Makes items.
        submission: Sends requests to engines.
        num_resends: Number of times that a request was sent again; it only rises.
    """

    def __init__(
        self,
        config: ServiceConfig,
        connections: EngineConnections,
        requests: RequestTable,
        *,
        prompts: Prompts,
        making: ItemMaking,
        items: ItemCache,
        outputs: EncoderOutputs,
        streams: TokenStreams,
        waits: Waits[OpenRequest],
    ) -> None:
        self._connections = connections
        self._outputs = outputs
        self._prompts = prompts
        self.making = making
        self.submission = Submission(
            config, connections, requests, outputs, items=items, counts=making.counts, waits=waits
        )
        self._streams = streams
        self.num_resends = 0

    def answer(self, request: OpenRequest) -> Verb[Answer]:
        """Return the answer to the client.

        Raises:
            MmcachedError: The request fails with this error.
        """
        yield from self._prompts.find(request)
        while True:
            owned: list[Owner] = []
            has_ended = True
            try:
                stored = yield from self._send(request)
                sent = request.sent
                if sent is None:
                    return _encoded(request, list(self._outputs.keys(request))), ()
                owned += self._outputs.own(request, sent.engine, stored)
                word, payload = yield from self._word(request, sent)
                if isinstance(word, received.RequestFailed):
                    return to_client.Failed(request.message.request_id, word.error), ()
                if isinstance(word, received.RequestMissed):
                    self._missed(request)
                else:
                    answer, payload, keys = yield from self._result(request, word, payload, sent.num_prompt_tokens)
                    if isinstance(word, received.RequestGenerated):
                        owned += self._outputs.expect(request, keys)
                    if (yield from self._outputs.come(request, keys)):
                        return answer, payload
                    request.has_to_be_inline = True
                    _end_phase(request, "missed")
                has_ended = False
            finally:
                self.submission.give_back(request)
                self._outputs.disown(owned, has_ended=has_ended)

    def flush(self) -> None:
        """Drop all items that are being made: they are neither cached nor sent."""
        self.making.flush()
        self.submission.room.wake()

    def _send(self, request: OpenRequest) -> Verb[Sequence[str]]:
        """Send a request to an engine, unless its client finds all outputs in the store.

        Returns:
            Keys of the items whose outputs the engine loads.
        """
        patience, is_fetched = Patience(), False
        with self.making.joining(request) as joined:
            yield from self.submission.engine()
            yield from self.making.keys(request, joined)
            while True:
                yield from self.submission.engine()
                stored = self._outputs.look(request)
                if self._outputs.are_all_in(request, stored):
                    return ()
                if not is_fetched:
                    is_fetched = True
                    if (yield from self._outputs.fetch(request, stored)):
                        continue
                stored = self._outputs.loadable(request, stored)
                given = self.making.make(request, joined, stored)
                if given is None:
                    yield Wait({*joined.in_work()})
                    continue
                sent = self.submission.submit(request, given, stored, patience)
                if isinstance(sent, Sent):
                    request.sent, joined.has_used = sent, True
                    about = {"mmcached.num_processed": len(given), "mmcached.num_stored": len(stored)}
                    _end_phase(request, "preprocess", about)
                    return list(stored)
                yield from sent

    def _word(self, request: OpenRequest, sent: Sent) -> Verb[tuple[Word, Sequence[Frame]]]:
        """Wait for the last message of the engine that has a request."""
        try:
            word: tuple[Word, Sequence[Frame]] = yield Wait()
            return word
        except GeneratorExit:
            if self._connections.get(sent.engine.incarnation) is not None:
                self._connections.tell(sent.engine, to_engine.AbortRequest(request.number))
            raise
        finally:
            self.submission.give_back(request)

    def _missed(self, request: OpenRequest) -> None:
        request.num_resends += 1
        self.num_resends += 1
        _end_phase(request, "missed")
        if request.num_resends > MAX_RESENDS:
            raise RequestAborted(f"the engine missed items {request.num_resends} times; try again")

    def _result(
        self,
        request: OpenRequest,
        word: received.RequestGenerated | received.RequestEncoded,
        payload: Sequence[Frame],
        num_prompt_tokens: int,
    ) -> Verb[tuple[to_client.Generated | to_client.Encoded, Sequence[Frame], list[str]]]:
        """Return the answer to a client, its frames, and the keys of the records that it names.

        Raises:
            RequestAborted: The engine has named records although the results must be inline, or rows were lost with a
                connection.
        """
        answer: to_client.Generated | to_client.Encoded
        if isinstance(word, received.RequestEncoded):
            answer, keys = _encoded(request, word.outputs), [key for key in word.outputs if isinstance(key, str)]
        else:
            rows, payload = self._streams.rest(request, word.rows, payload)
            answer = to_client.Generated(
                request_id=request.message.request_id,
                token_ids=word.token_ids,
                finish_reason=word.finish_reason,
                num_prompt_tokens=num_prompt_tokens,
                num_cached_tokens=word.num_cached_tokens,
                rows=rows,
                saved_rows=word.saved_rows,
                logprobs=word.logprobs,
                text=(yield from self._prompts.answer_text(request, word.token_ids)),
                num_items=len(request.keys),
            )
            keys = [rows.name for rows in word.saved_rows]
        if keys and not request.takes_keys:
            raise RequestAborted("the engine has named records of the store in an answer; try again")
        return answer, payload, keys


def _end_phase(request: OpenRequest, name: str, about: dict[str, int] | None = None) -> None:
    if request.span is not None:
        request.span.end_phase(f"mmcached.frontend.{name}", attributes=about)


def _encoded(request: OpenRequest, outputs: list[EncoderOutput]) -> to_client.Encoded:
    clips = [[(each.start_s, each.end_s) for each in medium.slices] for medium in request.media if medium.options]
    return to_client.Encoded(request.message.request_id, outputs, clips)
