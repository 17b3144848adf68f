"""Two whole SGLang servers, one after the other: what the first has encoded, the second says without its tower, also
with weights that the first was updated to.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from mmcached.client import Client
from tests.hosts.prompts import image, text
from tests.hosts.sglang import tower_count
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

WAIT_S = 1500.0
"""Limit of a server's start, and of an answer, on a machine with much other work. A server that ends is noticed at
once: SGLang's first process ends with each of its others.
"""
SMALL = ["--device", "cpu", "--dtype", "float32", "--mem-fraction-static", "0.05", "--max-total-tokens", "4096"]


@contextlib.contextmanager
def server(model: Path, log: Path, environment: dict[str, str], *more: str) -> Iterator[int]:
    """Run SGLang's server until it is killed; give its port when it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    words = ["--model-path", str(model), "--port", str(port), *SMALL, "--skip-server-warmup", *more]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "sglang.launch_server", *words],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        give_up = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if call(port, "GET", "/health")[0] == http.client.OK:
                    break
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"SGLang has not started:\n{log.read_text()[-6000:]}")
            time.sleep(0.25)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        return answer.status, json.loads(said) if said else None


def ask(port: int, *content: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the tokens that a model says to a message, and their log-probabilities."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": list(content)}],
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
    }
    status, said = call(port, "POST", "/v1/chat/completions", body)
    assert status == http.client.OK, said
    return [(one["token"], one["logprob"]) for one in said["choices"][0]["logprobs"]["content"]]


def processes(log: Path) -> list[tuple[int, str]]:
    """Return the processes of the server that writes a log, with their names."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "fd/1").readlink() == log:
                found.append((int(folder.name), (folder / "cmdline").read_bytes().decode()))
    return found


def on_two_cores() -> dict[str, str]:
    """Return the environment of a server of two ranks on the CPU, which binds each of them to a core."""
    cores = sorted(os.sched_getaffinity(0))
    return {"SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"}


TWO_RANKS = ["--tp-size", "2", "--mem-fraction-static", "0.2"]
SHARED = "mmcached: embeddings are shared with the SGLang processes of this host"
"""The page says that this is in the log, at SGLang's default level."""
AGAIN = "the service is there again"
"""In the log with the first call that the service answers again."""


def test_a_second_server_says_what_the_first_has_encoded(checkpoint: Path, store: LoneFrontend, tmp_path: Path) -> None:
    asked = {"MMCACHED_SGLANG": "engine_cache", "MMCACHED_RUN_DIR": str(store.directory.path)}
    one, other = tmp_path / "one", tmp_path / "other"
    questions = [[image(1), text("what")], [image(1), image(2), text("where")]]
    with server(checkpoint, tmp_path / "one.log", asked | tower_count.provide(one)) as port:
        before = store.stats().store.puts  # what the checkpoint's files contain
        said = [ask(port, *question) for question in questions]
        eventually(lambda: store.stats().store.puts, lambda count: count == before + 2, "both images are saved")
    assert len(set(tower_count.encoded(one))) == 2
    with server(checkpoint, tmp_path / "other.log", asked | tower_count.provide(other)) as port:
        assert [ask(port, *question) for question in questions] == said
        assert tower_count.encoded(other) == []
        ask(port, image(3), text("new"))
        assert len(tower_count.encoded(other)) == 1
        store.kill()
        ask(port, image(4), image(1), text("alone"))
        assert len(tower_count.encoded(other)) == 2
        store.start()
        ask(port, image(5), image(4), text("again"))
        assert len(tower_count.encoded(other)) == 3
        others = count(6)

        def log_after_another() -> str:
            ask(port, image(next(others)), text("again"))
            return (tmp_path / "other.log").read_text()

        log = eventually(log_after_another, lambda text: AGAIN in text, "the server puts what it encodes again")
    assert log.index(SHARED) < log.index(AGAIN)
    assert SHARED in (tmp_path / "one.log").read_text()


def changed(checkpoint: Path, folder: Path, part: str) -> Path:
    """Return a copy of a checkpoint with other weights of its tower (`visual`), or of everything else (`decoder`)."""
    shutil.copytree(checkpoint, folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    names = [name for name in weights if ("visual" in name) == (part == "visual")]
    assert names, sorted(weights)
    save_file(weights | {name: weights[name] * 1.5 for name in names}, file, {"format": "pt"})
    return folder


def test_servers_share_by_the_weights_that_they_were_updated_to(
    checkpoint: Path, store: LoneFrontend, tmp_path: Path
) -> None:
    asked = {"MMCACHED_SGLANG": "engine_cache", "MMCACHED_RUN_DIR": str(store.directory.path)}
    decoder, visual = (changed(checkpoint, tmp_path / part, part) for part in ("decoder", "visual"))
    one, other = tmp_path / "one", tmp_path / "other"
    question = (image(1), text("what"))

    def update(port: int, folder: Path) -> None:
        status, said = call(port, "POST", "/update_weights_from_disk", {"model_path": str(folder)})
        assert status == http.client.OK, said

    def ask_new(port: int) -> list[tuple[str, float]]:
        """Ask what no server has encoded with these weights, and wait until the embedding is saved."""
        with Client(store.directory.path) as client:
            before = client.keys("encoder/*")
            said = ask(port, *question)
            eventually(lambda: client.keys("encoder/*"), lambda keys: len(keys) == len(before) + 1, "the new embedding")
        return said

    with server(checkpoint, tmp_path / "one.log", asked | tower_count.provide(one)) as port:
        first = ask_new(port)
        update(port, decoder)
        assert ask(port, *question) != first
        assert len(tower_count.encoded(one)) == 1, "the tower is the same"
        update(port, visual)
        second = ask_new(port)
        assert len(tower_count.encoded(one)) == 2
        update(port, checkpoint)
        assert ask(port, *question) == first
        assert len(tower_count.encoded(one)) == 2, "back to the former weights"
    with server(visual, tmp_path / "other.log", asked | tower_count.provide(other)) as port:
        assert ask(port, *question) == second
        assert tower_count.encoded(other) == [], "it has loaded the weights that the first was updated to"


@pytest.mark.parametrize("arguments", [TWO_RANKS, [*TWO_RANKS, "--mm-enable-dp-encoder"]], ids=["parts", "pictures"])
def test_a_second_server_of_two_ranks_says_what_the_first_has_encoded(
    checkpoint: Path, store: LoneFrontend, tmp_path: Path, arguments: list[str]
) -> None:
    asked = {"MMCACHED_SGLANG": "engine_cache", "MMCACHED_RUN_DIR": str(store.directory.path), **on_two_cores()}
    one, other = tmp_path / "one", tmp_path / "other"
    questions = [[image(1), text("what")], [image(1), image(2), text("where")]]
    with server(checkpoint, tmp_path / "one.log", asked | tower_count.provide(one), *arguments) as port:
        before = store.stats().store.puts
        said = [ask(port, *question) for question in questions]
        eventually(lambda: store.stats().store.puts, lambda count: count == before + 2, "one rank saves both images")
    assert len(tower_count.encoded(one)) == 4, "each rank notes both images"
    with server(checkpoint, tmp_path / "other.log", asked | tower_count.provide(other), *arguments) as port:
        assert [ask(port, *question) for question in questions] == said
        assert tower_count.encoded(other) == []
        store.kill()
        ask(port, image(3), image(1), text("alone"))
        assert len(tower_count.encoded(other)) == 2
        store.start()
        ask(port, image(4), image(3), text("again"))
        assert len(tower_count.encoded(other)) == 4
        (rank,) = (pid for pid, name in processes(tmp_path / "other.log") if name.startswith("sglang::scheduler_TP1"))
        os.kill(rank, signal.SIGKILL)
        eventually(lambda: processes(tmp_path / "other.log"), lambda left: not left, "the killed rank's server ends")
    store.at_rest()
