"""OpenTelemetry spans of the calls of a client with a tracer: `Client(tracer_provider=…)`.

Only such a client imports this module. The span is the current one while the call runs: its parent is the caller's
span, and spans made in the function of `get_or_compute` are its children. Spans contain no keys, prompts or error
texts, which may be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from opentelemetry.trace import Span, SpanKind, Tracer, get_current_span, use_span

from mmcached.client.arguments import Options
from mmcached.client.calls import Calls
from mmcached.client.contact import MakeLink
from mmcached.client.piece_stream import Attempt, PieceStream
from mmcached.client.results import Generation, Piece
from mmcached.client.store.fail_open import FailOpen
from mmcached.client.store.hits import Hit
from mmcached.client.store.put_result import PutResult
from mmcached.client.verb import Call, ReadyResult, Verb
from mmcached.shm.store.codec import leaves_of
from mmcached.shm.store.tensor_bytes import dense_bytes, is_tensor
from mmcached.wire.messages.frontend import Generate
from mmcached.wire.paths import RunDir
from mmcached.wire.sockets.frames import Frame
from mmcached.wire.tracing import Attributes, set_error, traceparent_of

OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

T = TypeVar("T")


class TracedCalls(Calls):
    """`Calls` with spans of `get`, `put`, `get_or_compute`, `encode`, `generate` and `generate_stream`."""

    def __init__(
        self, tracer: Tracer, directory: RunDir, options: Options, guard: FailOpen, make_link: MakeLink
    ) -> None:
        super().__init__(directory, options, guard, make_link)
        self._tracer = tracer

    def get(self, key: str, *, tenant: str | None = None, **named: Any) -> Verb[Hit | None]:
        call = partial(super().get, key, tenant=tenant, **named)
        return self._traced(self._store_span("get", tenant), call, _of_hit)

    def put(self, key: str, record: Any, *, tenant: str | None = None, **named: Any) -> Verb[PutResult]:
        call = partial(super().put, key, record, tenant=tenant, **named)
        return self._traced(self._store_span("put", tenant), call, _of_put)

    def get_or_compute(self, key: str, fn: Callable[[], Any], *, tenant: str | None = None, **named: Any) -> Verb[Any]:
        is_hit = True

        def compute() -> Any:
            nonlocal is_hit
            is_hit = False
            return fn()

        def describe(record: Any) -> Attributes:
            return {"mmcached.hit": is_hit, **_of_record(record)}

        call = partial(super().get_or_compute, key, compute if callable(fn) else fn, tenant=tenant, **named)
        return self._traced(self._store_span("get_or_compute", tenant), call, describe)

    def encode(self, *values: Any, **named: Any) -> Verb[list[Any]]:
        return self._traced(
            self._model_span("encode", "embeddings"), partial(super().encode, *values, **named), _of_list
        )

    def generate(self, *values: Any, **named: Any) -> Verb[Generation]:
        call = partial(super().generate, *values, **named)
        return self._traced(self._model_span("generate", "text_completion"), call, _of_generation)

    def generate_stream(self, *values: Any, **named: Any) -> PieceStream:
        span = self._model_span("generate", "text_completion")
        span.set_attribute("gen_ai.request.stream", True)
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                return super().generate_stream(*values, **named)
        except BaseException as error:
            set_error(span, _code_of(error))
            span.end()
            raise

    # ---- internals

    def _traceparent(self) -> str:
        return traceparent_of(get_current_span())

    def _note_known(self, num_known: int, num_items: int) -> None:
        get_current_span().set_attributes({"mmcached.hit": num_known == num_items, "mmcached.num_hits": num_known})

    def _stream(
        self,
        requests: Sequence[Generate],
        files: Sequence[Frame],
        by_name: Callable[[Attempt], Verb[Piece]] | None = None,
    ) -> PieceStream:
        return _TracedStream(get_current_span(), self.contact, requests, files, by_name)

    def _traced(self, span: Span, begin: Callable[[], Call[T]], describe: Callable[[T], Attributes]) -> Verb[T]:
        try:
            with use_span(span, record_exception=False, set_status_on_exception=False):
                call = begin()
                result: T = call.result if isinstance(call, ReadyResult) else (yield from call)
            if span.is_recording():
                span.set_attributes(describe(result))
            return result
        except BaseException as error:
            set_error(span, _code_of(error))
            raise
        finally:
            span.end()

    def _store_span(self, verb: str, tenant: str | None) -> Span:
        names = {"db.system.name": "mmcached", "db.operation.name": verb}
        return self._span(verb, names, self.contact.options.tenant if tenant is None else tenant)

    def _model_span(self, verb: str, operation: str) -> Span:
        names = {"gen_ai.provider.name": "mmcached", "gen_ai.operation.name": operation}
        return self._span(verb, names, self.contact.options.tenant)

    def _span(self, verb: str, attributes: dict[str, str], tenant: str) -> Span:
        if tenant:
            attributes["mmcached.tenant"] = tenant
        return self._tracer.start_span(f"mmcached.{verb}", kind=SpanKind.CLIENT, attributes=attributes)


class _TracedStream(PieceStream):
    """A `PieceStream` whose span ends with it. A stream that was never read has no span."""

    def __init__(self, span: Span, *values: Any) -> None:
        super().__init__(*values)
        self._span = span
        self._num_generated = 0

    def next_piece(self) -> Verb[Piece]:
        try:
            piece = yield from super().next_piece()
        except BaseException as error:
            set_error(self._span, _code_of(error))
            raise
        if isinstance(piece, Generation):
            self._num_generated += len(piece.tokens)
            self._span.set_attributes({**_of_generation(piece), OUTPUT_TOKENS: self._num_generated})
        return piece

    def end(self) -> None:
        super().end()
        self._span.end()


def _code_of(error: BaseException) -> str:
    return str(getattr(error, "code", type(error).__name__))


def _of_hit(hit: Hit | None) -> Attributes:
    return {"mmcached.hit": False} if hit is None else {"mmcached.hit": True, **_of_record(hit.record)}


def _of_put(result: PutResult) -> Attributes:
    return {"mmcached.outcome": result.outcome, "mmcached.bytes": result.nbytes}


def _of_record(record: Any) -> Attributes:
    return {"mmcached.bytes": sum(dense_bytes(leaf) for _, leaf in leaves_of(record) if is_tensor(leaf))}


def _of_list(items: list[Any]) -> Attributes:
    return {"mmcached.num_items": len(items)}


def _of_generation(generation: Generation) -> Attributes:
    return {
        "gen_ai.usage.input_tokens": generation.num_prompt_tokens,
        OUTPUT_TOKENS: generation.usage.num_generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": generation.num_cached_tokens,
    }
