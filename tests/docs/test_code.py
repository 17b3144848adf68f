"""All code on the pages is run by a test, or at least read by the program that it is for."""

from __future__ import annotations

import base64
import json
import random
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from mmcached.cli.app import app
from mmcached.cli.config.arguments import parse_arguments
from mmcached.client import Client
from tests.client.services import StoreService
from tests.docs.pages import Block, blocks, code, shell_lines
from tests.house import REPOSITORY
from tests.house.test_dependencies import PROJECT
from tests.shm.processes import DEADLINE_S

RUN_BY = {
    "README.md": "tests/integration/test_readme.py",
    "docs/clients.md": "tests/integration/test_readme.py",
    "docs/faq.md": "tests/docs/test_code.py",
    "docs/fleet.md": "tests/second_level/test_prefetching.py",
    "docs/from-redis.md": "tests/docs/test_from_redis.py",
    "docs/from-vllm-omni.md": "tests/compat/omni_tensor_prefix_cache/test_page.py",
    "docs/kv-cache.md": "tests/engine/kv/test_page.py",
    "docs/start.md": "tests/integration/test_readme.py",
    "docs/tracing.md": "tests/integration/test_tracing.py",
    "docs/model.md": "tests/hosts/transformers/test_model_page.py",
    "docs/hosts/gateway.md": "tests/hosts/vllm/test_pages.py",
    "docs/hosts/processed-inputs.md": "tests/docs/test_code.py",
    "docs/hosts/your-own.md": "tests/docs/test_code.py",
    "docs/hosts/lmdeploy.md": "tests/hosts/lmdeploy/test_features.py",
    "docs/hosts/tensorrt-llm.md": "tests/integrations/tensorrt_llm/test_engines.py",
    "docs/hosts/diffusion-servers.md": "tests/hosts/sglang_diffusion/test_page.py",
    "docs/hosts/diffusers.md": "tests/hosts/diffusers/test_page.py",
    "docs/hosts/transformers.md": "tests/hosts/transformers/test_page.py",
}
"""Who runs the Python of a page."""
READ_BY = {
    **dict.fromkeys(("vllm", "ask", "curl"), "tests/hosts/vllm/test_pages.py"),
    **dict.fromkeys(("systemctl", "sudo", "cp", "python3"), "tests/deploy/test_systemd.py"),
    **dict.fromkeys(("mmcached", "make", "pip", "python", "export"), "tests/docs/test_code.py"),
}
"""Who runs, or reads, the lines with a program."""
HISTORY = ("CHANGELOG.md",)
"""Pages that say what was so."""
COMMANDS = [(block, words) for block in blocks() if block.language == "sh" for words in shell_lines(block.text)]
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


def test_every_page_with_python_has_a_test_that_runs_it() -> None:
    pages = {block.page for block in blocks() if block.language in ("py", "python")}
    assert pages == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert Path(page).name in (REPOSITORY / test).read_text(), f"{test} does not name {page}"


@pytest.mark.parametrize(
    "block", [block for block in blocks() if block.language in ("py", "python")], ids=lambda b: b.page
)
def test_python_is_python(block: Block) -> None:
    compile(block.text, block.page, "exec")


def words_of(program: str) -> list[Any]:
    found = [
        pytest.param(words, id=f"{block.page}: {' '.join(words)[:60]}")
        for block, words in COMMANDS
        if Path(words[0]).name == program
    ]
    assert found
    return found


@pytest.mark.parametrize("words", words_of("mmcached"))
def test_the_command_line_reads_each_command(words: list[str]) -> None:
    """Verb, options and their values are judged; nothing is started."""
    command: Any = typer.main.get_command(app)
    context, rest = None, words[1:]
    while True:
        context = command.make_context(command.name, list(rest), parent=context)
        if not hasattr(command, "commands"):
            break
        verb = next(word for word in rest if word in command.commands)
        command, rest = command.commands[verb], rest[rest.index(verb) + 1 :]
    parse_arguments(context.args)  # of a verb that takes settings; others have refused what is left


@pytest.mark.parametrize("words", words_of("make"))
def test_make_knows_each_target(words: list[str]) -> None:
    assert {word for word in words[1:] if "=" not in word and not word.startswith("-")} <= TARGETS


@pytest.mark.parametrize("words", words_of("pip"))
def test_each_extra_is_one(words: list[str]) -> None:
    for word in words[2:]:
        for extras in re.findall(r"\[(.+)\]", word):
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("words", words_of("python"))
def test_each_script_is_there(words: list[str]) -> None:
    match words[1:]:
        case ["-m", module, *_]:
            file = REPOSITORY / module.replace(".", "/")
            assert (
                file.is_dir()
                or file.with_suffix(".py").exists()
                or module.split(".")[0] in ("dynamo", "pytest", "sglang")
            )
        case [script, *_]:
            assert (REPOSITORY / script).exists()


@pytest.fixture
def client(run_dir: Path) -> Iterator[Client]:
    with StoreService(run_dir), Client(run_dir) as client:
        yield client


def test_the_page_of_symptoms_runs(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = code(REPOSITORY / "docs" / "faq.md", "py")
    client.get("x")
    exec(compile(block, "faq.md", "exec"), {"client": client})
    assert capsys.readouterr().out == "0 1 0 {}\n"


def test_the_page_of_processed_inputs_runs(client: Client) -> None:
    from mmcached.integrations.processed_inputs import ProcessedItem

    (block,) = code(REPOSITORY / "docs" / "hosts" / "processed-inputs.md", "py")
    runs: list[bytes] = []

    def process(file: bytes) -> ProcessedItem:
        runs.append(file)
        return ProcessedItem({"grid": [1, 2, 2]}, {"pixels": b"pixels"})

    names = {"client": client, "config": {}, "file": b"f", "process": process}
    exec(compile(block, "processed-inputs.md", "exec"), names)
    assert names["counts"] == {"grid": [1, 2, 2]}
    assert runs == [b"f"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_question_to_vllm_takes_a_photograph(tmp_path: Path) -> None:
    """It is longer than one argument of a command may be."""
    photograph = random.Random(0).randbytes(1 << 20)
    (tmp_path / "cat.png").write_bytes(photograph)
    asked: list[Any] = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *values: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        (question,) = [text for text in code(REPOSITORY / "docs" / "hosts" / "vllm.md", "sh") if "ask()" in text]
        define = question.partition("ask 8001")[0]
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        try:
            command = ["bash", "-euc", f"{define}ask {server.server_port}"]
            subprocess.run(command, cwd=tmp_path, check=True, timeout=DEADLINE_S)
        finally:
            server.shutdown()
            thread.join()
    _, picture = asked[0]["messages"][0]["content"]
    assert base64.b64decode(picture["image_url"]["url"].partition(",")[2]) == photograph


def tower(picture: bytes) -> Any:
    return np.ones((len(picture), 4), np.float16)


def test_the_page_for_your_own_server_runs(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = code(REPOSITORY / "docs" / "hosts" / "your-own.md", "python")
    with StoreService(run_dir):
        for _ in range(2):
            names: dict[str, Any] = {"run_dir": run_dir, "tower": tower, "hash_of": len}
            exec(compile(block, "your-own.md", "exec"), names)
            names["client"].close()
    said = capsys.readouterr().out.splitlines()
    assert said == ["(20, 4)", "1 computed here", "(20, 4)", "0 computed here"]


def test_what_the_page_quotes_is_what_is_said() -> None:
    page = (REPOSITORY / "docs" / "faq.md").read_text().partition("## Messages")[2].partition("## Symptoms")[0]
    quoted = [
        part.strip() for row in re.findall(r"^\| `([^|]+)` ?[^|]*\|", page, re.MULTILINE) for part in row.split("…")
    ]
    sources = "".join(file.read_text() for root in ("shm", "frontend") for file in (REPOSITORY / root).rglob("*.py"))
    assert len(quoted) > 10
    assert [part for part in quoted if part not in sources] == []
