"""A gateway that encodes pictures with Transformers, once per host, and asks vLLM about them by name:

    gateway.py RUN_DIR MODEL URL QUESTION PICTURE...
    gateway.py RUN_DIR MODEL URL --port PORT [--put]

vLLM decodes no picture, and runs neither processor nor tower: a request has a name and a grid per picture, some hundred
bytes. For checkpoints of the Qwen2-VL and Qwen2.5-VL kind. docs/hosts/gateway.md says how vLLM is started.

With `--port` it serves OpenAI's chat completions on 127.0.0.1 and passes them on to vLLM. A picture is a data: URL, or
a name, `{"type": "image_url", "image_url": null, "uuid": NAME}`: an unknown one is an error 404 that lists all names
that must be sent. `PUT /v1/media/NAME` binds a name to a picture, only with `--put`: whoever may bind a name decides
which picture all callers get under it. A name that comes beside a picture is not bound.
"""

import argparse
import base64
import io
import json
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import torch
from blake3 import blake3
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmcached.client import Client, InvalidRequest, MmcachedError, media_key
from mmcached.integrations.vllm.keys import key_of

ENCODER = "my-encoder"
"""What vLLM's setting `encoder` says; another one for each checkpoint, dtype and version of all that computes."""
MAX_BODY_BYTES = 64 << 20


class Encoder:
    """A processor and a vision tower. `num_encoded` counts pictures that it has encoded itself.

    Args:
        dtype: that the tower computes in; "auto" for the checkpoint's own, as vLLM's servers take it.
    """

    def __init__(self, client: Client, model: str, dtype: torch.dtype | str = "auto") -> None:
        self.num_encoded = 0
        self.client = client
        self._processor = AutoProcessor.from_pretrained(model).image_processor
        self._model = AutoModelForImageTextToText.from_pretrained(model, dtype=dtype).eval()

    def encode(self, file: bytes, content: str | None = None) -> tuple[str, dict[str, Any]]:
        """Return the name of a picture for vLLM, and its record: `embeds` (rows, width), and `grid`, three numbers.

        Args:
            content: Digest of the file, if it is known.
        """
        name = name_of(content or blake3(file).hexdigest())
        key = key_of(ENCODER, name)
        return name, self.client.get_or_compute(key, lambda: self._compute(file), view=True, timeout_s=60)

    def find(self, name: str) -> tuple[str, dict[str, Any]] | None:
        """Return as `encode` for a picture that callers have named; None if it must be sent.

        The record is under a lease, which ends with its tensors: until then vLLM finds it.
        """
        found = self.client.resolve(name, lambda content: key_of(ENCODER, name_of(content)), view=True)
        if found is None:
            return None
        if found.hit is not None:
            return name_of(found.content), found.hit.record
        kept = self.client.get(media_key(found.content), tensors="numpy")
        return None if kept is None else self.encode(kept["file"].tobytes(), found.content)

    @torch.no_grad()
    def _compute(self, file: bytes) -> dict[str, Any]:
        self.num_encoded += 1
        inputs = self._processor([Image.open(io.BytesIO(file)).convert("RGB")], return_tensors="pt")
        (embeds,) = self._model.model.get_image_features(**inputs, return_dict=True).pooler_output
        return {"embeds": embeds.contiguous(), "grid": inputs["image_grid_thw"][0].tolist()}


def name_of(content: str) -> str:
    """Return vLLM's name of a picture: a prefix keeps it apart from vLLM's own hashes."""
    return f"gateway-{content}"


def vllm_part(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a chat message that stands for a picture, for vLLM."""
    return {"type": "image_embeds", "image_embeds": {"image_grid_thw": record["grid"]}, "uuid": name}


def sglang_images(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the `image_data` of a request to SGLang's `Engine.generate`: all its pictures are one item.

    Its prompt has `<|image_pad|>` once for each row.
    """
    return [
        {
            "format": "processor_output",
            "precomputed_embeddings": torch.cat([record["embeds"] for record in records]),
            "image_grid_thw": torch.tensor([record["grid"] for record in records]),
        }
    ]


def ask(url: str, question: str, parts: list[dict[str, Any]]) -> str:
    """Return vLLM's answer to a question about pictures."""
    content = [*parts, {"type": "text", "text": question}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 16, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


class Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    encoder: Encoder
    url: str
    may_put: bool

    def do_PUT(self) -> None:
        try:
            name, file = unquote(self.path.removeprefix("/v1/media/")), self._body()
            if not self.may_put or not self.path.startswith("/v1/media/"):
                return self._send(403, {"error": {"message": "names are bound only with --put"}})
            self.encoder.encode(file)  # before the name can be found
            return self._send(201, {"content": self.encoder.client.bind(name, file, keeps_file=True)})
        except (InvalidRequest, OSError) as error:  # bound to another picture; no picture
            return self._send(409 if isinstance(error, InvalidRequest) else 400, {"error": {"message": str(error)}})

    def do_POST(self) -> None:
        try:
            body = json.loads(self._body())
            parts = [part for message in body["messages"] for part in parts_of(message) if "image_url" in part]
            held = [self._found(part) for part in parts]
        except (InvalidRequest, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            return self._send(400, {"error": {"message": f"{type(error).__name__}: {error}"}})
        except MmcachedError as error:
            return self._send(503, {"error": {"message": str(error), "code": error.code}})
        if missing := [part.get("uuid") for part, found in zip(parts, held, strict=True) if found is None]:
            return self._send(404, {"error": {"message": "send these", "code": "media_missing", "missing": missing}})
        for part, found in zip(parts, held, strict=True):
            del part["image_url"]
            part.update(vllm_part(*found))
        request = urllib.request.Request(
            self.url + self.path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request) as answer:  # the leases in `held` outlive it
                return self._send(answer.status, answer.read(), answer.headers["Content-Type"])
        except urllib.error.HTTPError as error:
            return self._send(error.code, error.read(), error.headers["Content-Type"])

    def _found(self, part: dict[str, Any]) -> Any:
        """Return name and record of a picture that has a name, or data; None if a name without data is unknown."""
        found = self.encoder.find(part["uuid"]) if part.get("uuid") else None
        if found is None and (part["image_url"] is not None or not part.get("uuid")):
            head, _, data = part["image_url"]["url"].partition(";base64,")
            if not head.startswith("data:image/"):
                raise InvalidRequest("image_url.url", head[:40], "a data: URL, or a uuid that is known")
            found = self.encoder.encode(base64.b64decode(data))
        return found

    def _body(self) -> bytes:
        num_bytes = int(self.headers.get("Content-Length") or 0)
        if num_bytes > MAX_BODY_BYTES:
            raise InvalidRequest("body", num_bytes, f"at most {MAX_BODY_BYTES} bytes")
        return self.rfile.read(num_bytes)

    def _send(self, status: int, body: Any, kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def parts_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message["content"] if isinstance(message.get("content"), list) else []


def make_server(encoder: Encoder, url: str, port: int, *, may_put: bool) -> ThreadingHTTPServer:
    about = {"encoder": encoder, "url": url, "may_put": may_put}
    return ThreadingHTTPServer(("127.0.0.1", port), type("Bound", (Handler,), about))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("run_dir", "model", "url"):
        parser.add_argument(name)
    parser.add_argument("question", nargs="?")
    parser.add_argument("pictures", nargs="*", type=Path)
    parser.add_argument("--port", type=int)
    parser.add_argument("--put", action="store_true")
    options = parser.parse_args()
    with Client(options.run_dir, fail_open=False) as client:
        encoder = Encoder(client, options.model)
        if options.port is not None:
            with make_server(encoder, options.url, options.port, may_put=options.put) as server:
                print(f"http://127.0.0.1:{server.server_port}/v1", flush=True)
                server.serve_forever()
        parts = [vllm_part(*encoder.encode(picture.read_bytes())) for picture in options.pictures]
        print(ask(options.url, options.question, parts))
        print(f"encoded here: {encoder.num_encoded} of {len(parts)} pictures")
