"""A server with OpenAI's chat completions in front of a service with a checkpoint: `openai_server.py RUN_DIR [PORT]`.

`POST /v1/chat/completions`, with pictures (data: URLs) and streams, and `GET /v1/models`. It has no authentication and
listens on 127.0.0.1 alone. A parameter that it does not know, or a value that cannot be served, is an error 400 that
names it. Beside OpenAI's parameters it takes `top_k`, `min_p` and `repetition_penalty`.
"""

import base64
import binascii
import json
import sys
import time
import uuid
from collections.abc import Generator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any

from mmcached.client import Client, DeadlineExceeded, Generation, InvalidRequest, MmcachedError, NewTokens, Sampling

MAX_BODY_BYTES = 64 << 20
MAX_TOKENS = 256
"""Length of an answer whose request names none."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
}
"""Values of parameters with which nothing is asked for that this server lacks."""
IGNORED = {"metadata", "model", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user"}
OWN = {"max_completion_tokens", "max_tokens", "messages", "n", "stop", "stream", "stream_options"}


def call_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `Client.generate` for a request; raises `InvalidRequest`."""
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name not in {*SAMPLING, *WITHOUT_EFFECT, *IGNORED, *OWN} or value not in WITHOUT_EFFECT.get(name, (value,)):
            raise InvalidRequest(name, json.dumps(value)[:80], "not supported by this server")
    stop = given.get("stop", [])
    sampling = Sampling(
        **{name: given[name] for name in SAMPLING if name in given}, stop=[stop] if isinstance(stop, str) else stop
    )
    messages = given.get("messages", [])
    if isinstance(messages, list):
        messages = [message_of(index, each) for index, each in enumerate(messages)]
    return {
        "messages": messages,
        "max_tokens": given.get("max_completion_tokens", given.get("max_tokens", MAX_TOKENS)),
        "sampling": sampling,
        "n": given.get("n", 1),
    }


def message_of(index: int, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    # A service's messages have a role and a content; names have no place in a chat template.
    message = {name: value for name, value in message.items() if value is not None and name != "name"}
    if isinstance(content := message.get("content"), list):
        field = f"messages[{index}].content"
        message["content"] = [part_of(f"{field}[{place}]", part) for place, part in enumerate(content)]
    return message


def part_of(field: str, part: Any) -> Any:
    """Return a part of a message with a picture in place of its data: URL."""
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return part
    found = part.get("image_url")
    url = str(found.get("url") if isinstance(found, dict) else found)
    head, _, data = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64")):
        raise InvalidRequest(f"{field}.image_url.url", url[:40], "data:image/…;base64,…: this server fetches nothing")
    try:
        return {"type": "image", "image": base64.b64decode(data, validate=True)}
    except binascii.Error as error:
        raise InvalidRequest(f"{field}.image_url.url", url[:40], f"base64: {error}") from None


def choice_of(index: int, answer: Generation) -> dict[str, Any]:
    message = {"role": "assistant", "content": answer.text}
    return {"index": index, "message": message, "finish_reason": answer.finish_reason}


def usage_of(answer: Generation, num_generated: int) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": num_generated,
        "total_tokens": answer.num_prompt_tokens + num_generated,
        "prompt_tokens_details": {"cached_tokens": answer.num_cached_tokens},
    }


class Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    client: Client
    model: str

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            return self._send(404, {"error": {"message": f"no {self.path}", "type": "invalid_request_error"}})
        models = [{"id": self.model, "object": "model", "created": 0, "owned_by": "mmcached"}]
        return self._send(200, {"object": "list", "data": models})

    def do_POST(self) -> None:
        try:
            if self.path != "/v1/chat/completions":
                raise InvalidRequest("path", self.path, "/v1/chat/completions")
            num_bytes = int(self.headers.get("Content-Length") or 0)
            if num_bytes > MAX_BODY_BYTES:
                raise InvalidRequest("body", num_bytes, f"at most {MAX_BODY_BYTES} bytes")
            body = json.loads(self.rfile.read(num_bytes))
            if not isinstance(body, dict):
                raise InvalidRequest("body", type(body).__name__, "an object")
            call = call_of(body)
            if body.get("stream"):
                self._stream(call, body)
            else:
                answer = self.client.generate(**call)
                choices = [choice_of(index, each) for index, each in enumerate([answer, *answer.others])]
                usage = usage_of(answer, answer.usage.num_generated_tokens)
                self._send(200, self._head("chat.completion") | {"choices": choices, "usage": usage})
        except MmcachedError as error:
            status = 400 if isinstance(error, InvalidRequest) else 504 if isinstance(error, DeadlineExceeded) else 503
            self._send(status if error.retryable or status == 400 else 500, error_body(error))
        except (TypeError, ValueError) as error:  # no JSON, or a number of another type
            self._send(400, error_body(InvalidRequest("body", "", str(error))))
        except ConnectionError:
            pass  # the client is gone; leaving the stream has ended its request in the service

    def _stream(self, call: dict[str, Any], body: dict[str, Any]) -> None:
        with closing(self._chunks(call, body)) as chunks:
            first = next(chunks)  # an error until here is an answer of its own
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                for chunk in chain([first], chunks):
                    self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            except MmcachedError as error:
                self.wfile.write(b"data: " + json.dumps(error_body(error)).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")

    def _chunks(self, call: dict[str, Any], body: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Yield the chunks of all answers as they come."""
        head, num_generated = self._head("chat.completion.chunk"), 0
        begun: set[int] = set()
        for piece in self.client.generate_stream(**call):
            delta = {} if piece.answer_index in begun else {"role": "assistant", "content": ""}
            begun.add(piece.answer_index)
            reason = None
            if isinstance(piece, NewTokens):
                delta["content"] = piece.text
            elif isinstance(piece, Generation):
                reason, answer = piece.finish_reason, piece
                num_generated += len(piece.tokens)
            yield head | {"choices": [{"index": piece.answer_index, "delta": delta, "finish_reason": reason}]}
        if (body.get("stream_options") or {}).get("include_usage"):
            yield head | {"choices": [], "usage": usage_of(answer, num_generated)}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": self.model}

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def error_body(error: MmcachedError) -> dict[str, Any]:
    kind = "invalid_request_error" if isinstance(error, InvalidRequest) else "server_error"
    param = str(error.details.get("field", "")).removeprefix("sampling.") or None
    return {"error": {"message": str(error), "type": kind, "param": param, "code": error.code}}


def make_server(client: Client, port: int, model: str = "mmcached") -> ThreadingHTTPServer:
    return ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (Handler,), {"client": client, "model": model}))


if __name__ == "__main__":
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8000
    with suppress(KeyboardInterrupt), Client(sys.argv[1]) as client, make_server(client, port) as server:
        print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
        server.serve_forever()
