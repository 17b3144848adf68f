"""Runs vLLM's own OpenAI server as a child process, and speaks to it as its users do: over HTTP.

Its log lies in a file of its own, whose end a failed start shows. Whoever asks gets `Answer`s: what a picture's
embedding decides, token ids and log-probabilities. One server may be asked by many threads.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_S = 600.0
"""A start takes 40 s on a machine with nothing else to do."""
ANSWER_S = 240.0
STOP_S = 60.0
POLL_S = 0.25
COUNTER = "tests.hosts.vllm.tower_count.TowerCount"
TOWER_FILE = "TOWER_COUNT_FILE"
"""Names the file into which the counter writes."""
API_COUNTER = "tests.hosts.vllm.api_count.ApiCount"
API_FILE = "API_COUNT_FILE"
"""The same of the API process."""
SMALL = {
    "dtype": "float32",
    "max-model-len": 2048,
    "max-num-seqs": 8,
    "limit-mm-per-prompt": {"image": 4},
}
_COUNTERS = {"worker-extension-cls": COUNTER, "middleware": API_COUNTER}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said.

    Attributes:
        tokens: what was generated, as text of one token each.
        logprobs: of these tokens.
        margins: by how much each was likelier than the next best.
    """

    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text[:400]}")
        self.status = status


def mmcached(run_dir: Path, *, role: str = "ec_both", **extra: Any) -> dict[str, Any]:
    """Return the options that join an engine to the service in `run_dir`."""
    return {
        "ec-transfer-config": {
            "ec_connector": "MmcachedECConnector",
            "ec_connector_module_path": "mmcached.integrations.vllm",
            "ec_role": role,
            "ec_connector_extra_config": {"run_dir": str(run_dir), **extra},
        }
    }


class VllmServer:
    """One server. Entering waits until it answers; leaving ends it.

    Args:
        options: of the command line, without dashes; True stands for a switch, a mapping is given as JSON.
        environment: further variables.
    """

    def __init__(
        self, model: Path, log: Path, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._api_file = log.with_suffix(".api")
        self._api_file.write_text("")
        self._tower_file = log.with_suffix(".tower")
        self._tower_file.write_text("")
        self.port = free_port()
        words = ["--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port)]
        for name, value in {**SMALL, **_COUNTERS, "enforce-eager": True, **options}.items():
            words.append(f"--{name}")
            if value is not True:
                words.append(value if isinstance(value, str) else json.dumps(value))
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words],
                env=server_environment()
                | {TOWER_FILE: str(self._tower_file), API_FILE: str(self._api_file)}
                | dict(environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Return when the server answers.

        Raises:
            RuntimeError: it ended, or said nothing in time.
        """
        give_up = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError, Refused):
                self.call("GET", "/health")
                return
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"vLLM has not started:\n{self.log.read_text()[-6000:]}")
            time.sleep(POLL_S)

    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = ANSWER_S) -> bytes:
        """Return the body of the answer to one request.

        Raises:
            OSError: nobody answered, or the connection broke.
            Refused: an error was the answer.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        with contextlib.closing(connection):
            try:
                given = None if body is None else json.dumps(body)
                connection.request(method, path, given, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
            except http.client.HTTPException as error:
                raise ConnectionError(f"the connection broke: {error!r}") from error
        if answer.status != http.client.OK:
            raise Refused(answer.status, said.decode(errors="replace"))
        return said

    def ask(self, content: list[dict[str, Any]], *, max_tokens: int = 4) -> Answer:
        """Return what the model says to a message of the OpenAI kind."""
        body = {
            "model": "tiny",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": True,
            "top_logprobs": 2,
            "return_tokens_as_token_ids": True,
        }
        said = json.loads(self.call("POST", "/v1/chat/completions", body))["choices"][0]
        found = said["logprobs"]["content"]
        best = [sorted((top["logprob"] for top in one["top_logprobs"]), reverse=True) for one in found]
        return Answer(
            tuple(one["token"] for one in found),
            tuple(one["logprob"] for one in found),
            tuple(first - second for first, second in best),
        )

    def items_encoded(self) -> list[str]:
        """Return the identifiers of the items that its vision tower has encoded, one for each time."""
        return self._tower_file.read_text().split()

    def api_work(self) -> list[str]:
        """Return what its API process has done with media: `processor`, `image` or `video` (a decoded file), each time.

        Of its warm-up the processor's run counts, too.
        """
        return self._api_file.read_text().split()

    def kill(self) -> None:
        """End all its processes at once, as a crash does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it in order; may be called again."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        self.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def server_environment() -> dict[str, str]:
    """Return the variables of a program with an engine of a tiny model inside, which finds the modules of the tests."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(path for path in [os.getcwd(), os.environ.get("PYTHONPATH")] if path),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }
