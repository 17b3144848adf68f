"""The example gateway: pictures by name cross HTTP once, what must be sent is said, and only `--put` binds names."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from examples.gateway import ENCODER, Encoder, make_server, name_of
from mmcached.client import Client
from mmcached.integrations.vllm.keys import key_of
from tests.integration.processes import DEADLINE_S

CAT, DOG = b"a picture of a cat", b"a picture of a dog"


class StubEncoder(Encoder):
    """Encodes without a tower."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.encoded: list[bytes] = []

    def _compute(self, file: bytes) -> dict[str, Any]:
        self.encoded.append(file)
        if file == b"no picture":
            raise OSError("cannot identify image file")
        return {"embeds": torch.full((4, 8), float(len(self.encoded))), "grid": [1, 4, 4]}


class Engine(BaseHTTPRequestHandler):
    """Answers as vLLM, and checks that each picture that is named has a record at that moment."""

    client: Client
    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        names = [part["uuid"] for message in body["messages"] for part in message["content"] if "uuid" in part]
        answer = json.dumps({"found": self.client.contains_many([key_of(ENCODER, name) for name in names])}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


class Desk:
    """A gateway in front of an `Engine`."""

    def __init__(self, client: Client, *, may_put: bool) -> None:
        self.encoder, self.bodies = StubEncoder(client), list[dict[str, Any]]()
        self._stack = ExitStack()
        about = {"client": client, "bodies": self.bodies}
        engine = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Engine,), about))
        engine_url = self._serve(engine)
        self._url = self._serve(make_server(self.encoder, engine_url, 0, may_put=may_put))

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def put(self, name: str, file: bytes) -> tuple[int, Any]:
        return self._send("PUT", f"/v1/media/{name}", file)

    def ask(self, *parts: dict[str, Any]) -> tuple[int, Any]:
        content = [*parts, {"type": "text", "text": "What is it?"}]
        body = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]}
        return self._send("POST", "/v1/chat/completions", json.dumps(body).encode())

    def _serve(self, server: ThreadingHTTPServer) -> str:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        self._stack.callback(thread.join, DEADLINE_S)
        self._stack.callback(server.server_close)
        self._stack.callback(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def _send(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        request = urllib.request.Request(self._url + path, body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture
def desk(client: Client) -> Iterator[Desk]:
    with Desk(client, may_put=True) as desk:
        yield desk


def named(name: str, file: bytes | None = None) -> dict[str, Any]:
    data = file and {"url": f"data:image/png;base64,{base64.b64encode(file).decode()}"}
    return {"type": "image_url", "image_url": data, "uuid": name}


def test_a_picture_is_posted_once_and_then_named(desk: Desk) -> None:
    status, bound = desk.put("a%20cat", CAT)
    assert status == 201
    for _ in range(2):
        assert desk.ask(named("a cat"), named("a cat")) == (200, {"found": [True, True]})
    part = {"type": "image_embeds", "image_embeds": {"image_grid_thw": [1, 4, 4]}, "uuid": name_of(bound["content"])}
    assert desk.bodies[-1]["messages"][1]["content"][:2] == [part, part]
    assert desk.encoder.encoded == [CAT]


def test_what_must_be_sent_is_said_and_a_name_beside_a_picture_is_not_bound(desk: Desk) -> None:
    desk.put("cat", CAT)
    status, answer = desk.ask(named("bird"), named("cat"), named("dog"))
    assert (status, answer["error"]["missing"]) == (404, ["bird", "dog"])
    assert desk.bodies == []
    assert desk.ask(named("dog", DOG), named("cat")) == (200, {"found": [True, True]})
    assert desk.ask(named("dog"))[0] == 404
    assert desk.encoder.encoded == [CAT, DOG]


def test_an_embedding_that_has_left_the_store_is_made_again_without_the_client(desk: Desk, client: Client) -> None:
    _, bound = desk.put("cat", CAT)
    client.drop(key_of(ENCODER, name_of(bound["content"])))
    assert desk.ask(named("cat")) == (200, {"found": [True]})
    assert desk.encoder.encoded == [CAT, CAT]


def test_names_are_bound_once_by_put_alone_and_only_if_it_is_allowed(desk: Desk, client: Client) -> None:
    assert [desk.put("cat", CAT)[0], desk.put("cat", CAT)[0], desk.put("cat", DOG)[0]] == [201, 201, 409]
    assert desk.put("junk", b"no picture")[0] == 400
    assert client.resolve("junk") is None
    with Desk(client, may_put=False) as closed:
        assert closed.put("dog", DOG)[0] == 403
        assert closed.ask(named("cat"))[0] == 200
    assert client.resolve("dog") is None


@pytest.mark.parametrize("part", [{"url": "http://host/cat.png"}, {"url": 5}, "cat", 5])
def test_what_is_no_picture_is_refused(desk: Desk, part: Any) -> None:
    assert desk.ask({"type": "image_url", "image_url": part})[0] == 400
    assert desk.bodies == []
