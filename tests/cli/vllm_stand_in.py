"""A stand-in for vLLM's server: takes the options that the demo gives, and finds and saves pictures in the store.

The name of the model says what it does: `works`, `ends` when it starts, `ends-when-asked`. Like vLLM it has an engine
in a process of its own, which outlives a SIGKILL of the server.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from mmcached.client import Client

PACKAGE = "vllm/entrypoints/openai"
NUM_TOKENS = 8


def install(folder: Path, *, version: str = "99.0") -> None:
    """Write a package `vllm` into a folder, whose server is this module."""
    package = folder / PACKAGE
    package.mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (package / "api_server.py").write_text("from tests.cli.vllm_stand_in import main\nmain()\n")


class Requests(BaseHTTPRequestHandler):
    client: Client | None = None
    does = "works"
    num_encoded = 0
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(f'vllm:mmcached_ec_encodes_total{{engine="0"}} {Requests.num_encoded}.0\n'.encode())

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.does == "ends-when-asked":
            sys.stdout.write("the engine is dead\n")
            sys.stdout.flush()
            os._exit(1)
        part, _ = asked["messages"][0]["content"]
        key = hashlib.sha256(part["image_url"]["url"].encode()).hexdigest()
        if "uuid" in part or self.client is None or self.client.get(key) is None:
            Requests.num_encoded += 1
            if "uuid" not in part and self.client is not None:
                self.client.put(key, {"rows": key.encode()})
        parts: list[dict[str, Any]] = [{"choices": [{"delta": {"role": "assistant"}, "logprobs": None}]}]
        for place in range(NUM_TOKENS):
            content = [{"token": key[place], "logprob": -float(place)}]
            parts.append({"choices": [{"delta": {}, "logprobs": {"content": content}}]})
        stream = "".join(f"data: {json.dumps(part)}\n\n" for part in parts)
        self._answer(f"{stream}data: [DONE]\n\n".encode())

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    def handle_error(self, *request_and_address: object) -> None:
        """Say nothing of a client that has closed its connection before the answer."""


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--host", "--ec-transfer-config"):
        parser.add_argument(name, default="")
    parser.add_argument("--port", type=int)
    given = parser.parse_args()
    engine = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])

    def end(*signal_and_frame: object) -> None:
        engine.kill()
        engine.wait()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    if given.model == "ends":
        sys.exit("no such model\x1b[2J")
    if given.ec_transfer_config:
        transfer = json.loads(given.ec_transfer_config)
        Requests.client = Client(transfer["ec_connector_extra_config"]["run_dir"])
    Requests.does = given.model
    with Server((given.host, given.port), Requests) as server:
        server.serve_forever()
