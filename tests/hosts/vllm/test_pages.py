"""The pages for vLLM are true: their commands run as they stand there, with a tiny checkpoint, and do what is said.

vLLM is started by its own line of the page, through the module behind the command `vllm`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from vllm.entrypoints.scale_out.token_in_token_out.mm_serde import decode_mm_kwargs_item

from mmcached.integrations.vllm.settings import ConnectorSettings
from tests.hosts.vllm.processing import picture
from tests.hosts.vllm.servers import POLL_S, START_S, VllmServer, free_port
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S, eventually, stats_of

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.timeout(1800)]
PAGES = REPOSITORY / "docs" / "hosts"


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", (PAGES / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> Path:
    return checkpoint("qwen2_5_vl")


@pytest.fixture
def desk(tmp_path: Path, run_dir: Path, model: Path) -> dict[str, str]:
    """The environment of somebody who follows a page in `tmp_path`: two pictures, the examples, a store."""
    for seed, name in enumerate(("cat.png", "dog.png")):
        picture(seed).resize((84, 112)).save(tmp_path / name)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "mmcached"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m mmcached "$@"\n')
    command.chmod(0o755)
    return {
        **os.environ,
        "RUN_DIR": str(run_dir / "s"),
        "MODEL": str(model),
        "PATH": f"{command.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])),
        "HF_HUB_OFFLINE": "1",
    }


class Store:
    """A store, started by a page's own line; smaller."""

    def __init__(self, page: str, desk: dict[str, str]) -> None:
        (line,) = [line for block in blocks(page, "sh run") for line in block.splitlines() if " serve " in line]
        line = f"exec {line.removesuffix('&').strip()} --store-gb 0.05"
        self._process = subprocess.Popen(["bash", "-c", line], env=desk, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().startswith("mmcached ready")

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def servers(page: str, desk: dict[str, str]) -> list[dict[str, Any]]:
    """Return the options of the page's lines `vllm serve MODEL --name value …`, after the shell has read them.

    Option `processed` is the value of the variable MMCACHED_PROCESSED_INPUTS, if a line sets it.
    """
    found = []
    for line in "".join(blocks(page, "sh vllm")).splitlines():
        script = f'vllm() {{ printf "%s\\0" "$MMCACHED_PROCESSED_INPUTS" "$@"; }}\n{line.removesuffix("&")}'
        said = subprocess.run(["bash", "-c", script], env=desk, capture_output=True, check=True, text=True).stdout
        processed, verb, model, *words = said.split("\0")[:-1]
        words += ["--processed", processed] if processed else []
        assert (verb, model) == ("serve", desk["MODEL"])
        found.append({name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)})
    return found


def run(script: str, folder: Path, desk: dict[str, str]) -> str:
    ended = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=desk, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_the_second_replica_hits(desk: dict[str, str], tmp_path: Path) -> None:
    with ExitStack() as stack:
        stack.enter_context(Store("vllm.md", desk))
        questions, look = blocks("vllm.md", "sh ask")
        for number, options in enumerate(servers("vllm.md", desk)):
            port = options.pop("port")
            server = stack.enter_context(VllmServer(Path(desk["MODEL"]), tmp_path / f"{number}.log", options))
            questions, look = (text.replace(port, str(server.port)) for text in (questions, look))
        *define, ask_first, ask_second = questions.splitlines()
        run("\n".join([*define, ask_first]), tmp_path, desk)
        eventually(lambda: stats_of(Path(desk["RUN_DIR"])).store.ring.chunks, lambda now: now >= 1, "a record")
        run("\n".join([*define, ask_second]), tmp_path, desk)
        figures = run(look, tmp_path, desk)
        exported = run(f"curl -s http://127.0.0.1:{server.port}/metrics", tmp_path, desk)
        logs = [(tmp_path / f"{number}.log").read_text() for number in range(2)]
    assert all("mmcached: encoder outputs are shared with the engines of this host" in log for log in logs)
    assert re.search(r"mmcached_ec_hits_total{.*} 1\.0", figures), figures
    assert not re.search(r"mmcached_ec_encodes_total{.*} [1-9]", figures), figures
    named = set(re.findall(r"`(vllm:\w+_total)`", (REPOSITORY / "docs" / "metrics.md").read_text()))
    assert len(named) > 15
    assert named - set(re.findall(r"vllm:\w+", exported)) == set()


def test_the_second_server_processes_nothing(desk: dict[str, str], tmp_path: Path) -> None:
    page = "processed-inputs.md"
    messages = map(json.loads, blocks(page, "json")[0].replace("file:///pictures", tmp_path.as_uri()).splitlines())
    with ExitStack() as stack:
        stack.enter_context(Store(page, desk))
        said, works = [], []
        for number, (options, message) in enumerate(zip(servers(page, desk), messages, strict=True)):
            del options["port"]
            variables = {"MMCACHED_PROCESSED_INPUTS": options.pop("processed"), "MMCACHED_PROCESSED_INPUTS_NAMED": "1"}
            options["allowed-local-media-path"] = str(tmp_path)
            log = tmp_path / f"{number}.log"
            server = stack.enter_context(VllmServer(Path(desk["MODEL"]), log, options, variables))
            before = len(server.api_work())
            said.append(server.ask([message, {"type": "text", "text": "What?"}]).tokens)
            works.append(server.api_work()[before:])
    assert works[0].count("processor") == 1
    assert works[1] == []
    assert said[0] == said[1]


def test_the_gateway_encodes_and_vllm_does_not(desk: dict[str, str], tmp_path: Path) -> None:
    (options,) = servers("gateway.md", desk)
    port = options.pop("port")
    with (
        Store("gateway.md", desk),
        VllmServer(Path(desk["MODEL"]), tmp_path / "log", options | {"dtype": "float32"}) as server,
    ):
        (ask,) = blocks("gateway.md", "sh ask")
        ask = ask.replace(port, str(server.port))
        first, second = run(ask, tmp_path, desk), run(ask, tmp_path, desk)
        assert first.endswith("encoded here: 2 of 2 pictures\n")
        assert second.endswith("encoded here: 0 of 2 pictures\n")
        assert first.splitlines()[:-1] == second.splitlines()[:-1]
        (serve,), (named,) = blocks("gateway.md", "sh gateway"), blocks("gateway.md", "sh named")
        gateway = str(free_port())
        serve = serve.replace(port, str(server.port)).replace("8002", gateway).removesuffix("&\n")
        put, chat = named.replace("8002", gateway).splitlines()
        with running(f"exec {serve}", tmp_path, desk):
            assert re.fullmatch('{"content": "[0-9a-f]{64}"}', run(put, tmp_path, desk))
            answer = json.loads(run(chat, tmp_path, desk))
            assert answer["choices"][0]["message"]["content"]
            unknown = run(chat.replace("my-cat", "my-dog").replace("-sf", "-s"), tmp_path, desk)
            assert json.loads(unknown)["error"]["missing"] == ["my-dog"]
        assert server.items_encoded() == []


@contextlib.contextmanager
def running(command: str, folder: Path, desk: dict[str, str]) -> Iterator[None]:
    """Run a server that prints a line when it is ready."""
    process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=desk, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


def test_render_servers_share(desk: dict[str, str], tmp_path: Path) -> None:
    """The second one answers with the items of the first one, field by field; a request for counts has no pixels."""
    lines = "".join(blocks("processed-inputs.md", "sh render")).splitlines()
    answers = []
    with ExitStack() as stack:
        stack.enter_context(Store("processed-inputs.md", desk))
        for line in lines:
            server = RenderServer(line, desk, tmp_path)
            stack.callback(server.stop)
            server.wait_until_ready()
            answers += [server.render(tmp_path / "cat.png", payload) for payload in ("tensors", "none")]
            assert "processed items are shared through" in server.log.read_text()
            if len(answers) == 2:
                before = stats_of(Path(desk["RUN_DIR"])).store
        after = stats_of(Path(desk["RUN_DIR"])).store
    first, _, second, counts = answers
    for answer in answers:
        assert answer["token_ids"] == first["token_ids"]
        assert answer["features"]["mm_placeholders"] == first["features"]["mm_placeholders"]
    (made,), (found,) = (each["features"]["kwargs_data"]["image"] for each in (first, second))
    assert decode_mm_kwargs_item(made) == decode_mm_kwargs_item(found)
    assert counts["features"]["kwargs_data"] is None
    assert after.hits > before.hits


class RenderServer:
    """`vllm launch render`, started by a line of the page through the module behind the command."""

    def __init__(self, line: str, desk: dict[str, str], folder: Path) -> None:
        self.port = free_port()
        self.log = folder / f"render.{self.port}.log"
        module = f"exec {sys.executable} -m vllm.entrypoints.launchers.render.entry --max-model-len 2048"
        command = line.partition("vllm launch render")[0] + module + f' --model "$MODEL" --port {self.port}'
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(["bash", "-c", command], env=desk, stdout=log, stderr=log)

    def wait_until_ready(self) -> None:
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up and self._process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10).close()
                return
            time.sleep(POLL_S)
        raise RuntimeError(self.log.read_text()[-4000:])

    def render(self, picture: Path, payload: str) -> dict[str, Any]:
        url = f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
        body = {"messages": [{"role": "user", "content": content}], "mm_payload": payload}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions/render",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            said: dict[str, Any] = json.load(answer)
        return said

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)


def test_the_options_are_those_of_the_page() -> None:
    shown = {"none": None, "empty": "", "false": False, "true": True}
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (PAGES / "vllm.md").read_text(), re.MULTILINE)
    found = {name: shown[default] if default in shown else json.loads(default) for name, default in rows}
    assert found == {field.name: field.default for field in fields(ConnectorSettings)}
