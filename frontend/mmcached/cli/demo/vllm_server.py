"""Runs vLLM's OpenAI server as a child process, as its users start it, and asks it over HTTP.

The server ends with this process: in order on `stop`, and by SIGTERM from the kernel if this process is killed. (After
a SIGKILL of its own front end, vLLM's engine would go on running.)
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmcached.cli.terminal_text import shown_lines
from mmcached.integrations.vllm.versions import check_vllm
from mmcached.wire.errors import DeadlineExceeded, InvalidRequest, MmcachedError, ServiceUnavailable
from mmcached.wire.extras import how_to_install
from mmcached.wire.process.death import environment_for_children

MODULE = "vllm.entrypoints.openai.api_server"
"""The module behind `vllm serve`. It works with every build of vLLM, even where the command does not start."""
START_S = 1800.0
"""Allows for downloading and compiling a large model."""
ANSWER_S = 300.0
STOP_S = 30.0
POLL_S = 0.2
MAX_TOKENS = 8
TAIL_LINES = 40
QUESTION = "What is this?"
_LAUNCH = (
    "import os, signal, sys; from mmcached.wire.process.death import arm_from_environment as arm; "
    "arm(signal.SIGTERM); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


def check_host() -> None:
    """Raise InvalidRequest unless vLLM is installed in this environment, in a version that the adapter accepts."""
    try:
        check_vllm()
    except ImportError as error:
        fix = f"{how_to_install('store', 'vllm')}, without `vllm` in the environment of a vLLM that is there"
        raise InvalidRequest("--vllm", "vLLM", f"{error}: {fix}") from None


@dataclass(frozen=True, slots=True)
class Launch:
    """The command line and environment of a server.

    Attributes:
        options: Further options of vLLM's command line.
        environment: Variables in addition to those of this process.
    """

    model: str
    options: Sequence[str]
    environment: Mapping[str, str]

    def preceded_by(self, options: Sequence[str] = (), environment: Mapping[str, str] | None = None) -> Launch:
        """Return a copy with more options before its own; of a repeated option the last one counts."""
        return Launch(self.model, [*options, *self.options], {**self.environment, **(environment or {})})


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a question about one image.

    Attributes:
        first_token_s: Time from the request to the first token.
        tokens: Generated tokens, as text.
        logprobs: Log-probabilities of these tokens.
    """

    first_token_s: float
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


class VllmServer:
    """One server; see `running`.

    Raises:
        ServiceUnavailable: (from each call) The server ended, or its answer is an error. The end of its log was written
            to stderr.
        DeadlineExceeded: No answer in time; the same.
    """

    def __init__(self, name: str, launch: Launch, log_file: Path) -> None:
        self.name = name
        self._port = _free_port()
        self._log_file = log_file
        own = ["--model", launch.model, "--host", "127.0.0.1", "--port", str(self._port)]
        with log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, "-m", MODULE, *own, *launch.options],
                env={**environment_for_children(), **launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the demo
            )

    def ask(self, picture: bytes, *, name: str | None = None) -> Reply:
        """Ask about an image and read the streamed answer.

        Args:
            name: Name that stands for the image's content; None for a hash of the content.
        """
        part: dict[str, Any] = {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{base64.b64encode(picture).decode()}"},
        }
        if name is not None:
            part["uuid"] = name
        body = {
            "messages": [{"role": "user", "content": [part, {"type": "text", "text": QUESTION}]}],
            "stream": True,
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": True,
            "return_tokens_as_token_ids": True,
        }
        given = json.dumps(body)
        tokens: list[Any] = []
        first_token_s = 0.0
        started = time.perf_counter()
        with self._answer("POST", "/v1/chat/completions", given) as answer:
            for chunk in _chunks(answer):
                if tokens_now := _tokens_of(chunk):
                    first_token_s = first_token_s or time.perf_counter() - started
                    tokens += tokens_now
        if len(tokens) != MAX_TOKENS:
            raise self._failed(f"{len(tokens)} of {MAX_TOKENS} tokens came")
        return Reply(first_token_s, tuple(t["token"] for t in tokens), tuple(t["logprob"] for t in tokens))

    def num_encoded(self) -> int:
        """Return the number of encoder runs, as mmcached's connector counts them."""
        with self._answer("GET", "/metrics") as answer:
            page = answer.read().decode()
        return sum(int(float(value)) for value in re.findall(r"^vllm:mmcached_ec_encodes_total\S* (\S+)$", page, re.M))

    def wait_until_ready(self) -> None:
        give_up = time.monotonic() + START_S
        while not self._is_ready():
            if self.process.poll() is not None:
                raise self._failed("it did not start")
            if time.monotonic() > give_up:
                raise self._too_late("start", START_S)
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        return False

    @contextlib.contextmanager
    def _answer(self, method: str, path: str, body: str | None = None) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if answer.status != http.client.OK:
                    raise self._failed(f"HTTP {answer.status}: {answer.read(400).decode(errors='replace')}")
                yield answer
            except TimeoutError:
                raise self._too_late("answer", ANSWER_S) from None
            except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                raise self._failed(repr(error)) from error

    def _failed(self, reason: str) -> MmcachedError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)  # a connection breaks a little before the process has ended
        status = self.process.poll()
        ended = "" if status is None else f"; it ended with status {status}"
        self._show_log()
        return ServiceUnavailable(f"{self.name}: {reason}{ended}; the end of its log is above")

    def _too_late(self, operation: str, timeout_s: float) -> MmcachedError:
        self._show_log()
        return DeadlineExceeded(f"{self.name}, {operation}", timeout_s)

    def _show_log(self) -> None:
        lines = self._log_file.read_text(errors="replace").splitlines()
        sys.stderr.write(shown_lines("\n".join(lines[-TAIL_LINES:])) + "\n")

    def stop(self) -> None:
        """End all its processes: in order, or killed after `STOP_S`. May be called again."""
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(STOP_S)
        finally:  # even after a second Ctrl-C
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def running(name: str, launch: Launch, log_file: Path) -> Iterator[VllmServer]:
    """Start a server, wait until it is ready, and end it at the end of the block. Call it in the main thread."""
    server = VllmServer(name, launch, log_file)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _chunks(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        data = line.removeprefix(b"data: ").strip()
        if data and data != b"[DONE]":
            yield json.loads(data)


def _tokens_of(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tokens of a part, each with its log-probability; ValueError if the part is an error."""
    if "error" in chunk:
        raise ValueError(chunk["error"])
    return [token for choice in chunk["choices"] for token in (choice.get("logprobs") or {}).get("content") or ()]
