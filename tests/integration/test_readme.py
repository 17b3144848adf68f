"""What README.md, start.md and clients.md show is run. (The demo's output: `test_demo`; files: `tests/house`.)"""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmcached.client import CacheMiss, Client, Generation, RowRange, RowsWanted, Url, Video
from tests.cli.test_app import mmcached
from tests.client.services import StoreService
from tests.clips.files import sound, video
from tests.integration.local_service import LocalService
from tests.integration.processes import DEADLINE_S, small_config

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
START = ROOT / "docs" / "start.md"
CLIENTS = ROOT / "docs" / "clients.md"


def blocks(language: str, page: Path) -> list[str]:
    return re.findall(rf"^```{language}(?: \w+)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_example_runs(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks("python", START)
    Image.fromarray(np.full((50, 70, 3), 99, np.uint8)).save(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)
    with LocalService(run_dir, small_config(world_size=1)):
        exec(compile(code.replace("/tmp/my-service", str(run_dir)), START.name, "exec"), {})
        with Client(run_dir) as client:
            assert client.stats().processor.hits == 1, "the second call found the image in the processor cache"
    assert [line.count("torch.Size") for line in capsys.readouterr().out.splitlines()] == [1, 1]


def test_examples_of_the_clients_page_run(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a stream join to what comes with the answer in full."""
    (tmp_path / "film.mp4").write_bytes(video(24, fps=1))
    (tmp_path / "song.ogg").write_bytes(sound(3, format="OGG"))
    monkeypatch.chdir(tmp_path)
    (code,) = [block for block in blocks("py", CLIENTS) if "RowRange" in block]
    consumer = Consumer()
    with LocalService(run_dir, small_config(world_size=1)), Client(run_dir) as client:
        names: dict[str, Any] = {kind.__name__: kind for kind in (Generation, RowRange, RowsWanted)}
        names |= {"client": client, "consumer": consumer}
        exec(compile(code, CLIENTS.name, "exec"), names)
        full = client.generate("Tell me", max_tokens=64, hidden_states=True)
        run_other_examples(client)
    last = names["last"]
    joined = torch.cat([tensor for _, tensor in consumer.taken] + [last.tensor])
    assert [first for first, _ in consumer.taken][:1] == [3]
    assert full.hidden_states is not None
    assert torch.equal(joined, full.hidden_states[3:])


@pytest.mark.parametrize("page", [README, START], ids=lambda page: page.name)
def test_five_lines_of_a_client_run(run_dir: Path, page: Path) -> None:
    (code,) = blocks("py", page)
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 5
    names: dict[str, Any] = {"key": "photo-1", "tower": torch.Tensor.double, "pixels": torch.ones(2)}
    with StoreService(run_dir):
        for _ in range(2):  # computed, then found
            exec(compile(code.replace("/tmp/mmcached", str(run_dir)), page.name, "exec"), names)
            assert torch.equal(names["embeds"], torch.ones(2).double())
            names["tower"] = None


def run_other_examples(client: Client) -> None:
    """Run each `py` block by itself, with the names that the text around it uses."""
    codes = [block for block in blocks("py", CLIENTS) if "RowRange" not in block]
    assert len(codes) == 8
    buffer = io.BytesIO()
    Image.fromarray(np.full((50, 70, 3), 99, np.uint8)).save(buffer, "PNG")
    names: dict[str, Any] = {kind.__name__: kind for kind in (CacheMiss, Path, Url, Video)}
    names |= {"client": client, "cat": buffer.getvalue(), "pixels": torch.ones(2)}
    names |= {"etag": '"1"', "download": lambda url: buffer.getvalue()}
    for code in codes:
        exec(compile(code, CLIENTS.name, "exec"), {**names, "key": "of a page", "tower": torch.Tensor.double})


class Consumer:
    def __init__(self) -> None:
        self.taken: list[tuple[int, torch.Tensor]] = []

    def take(self, key: str, first: int, tensor: torch.Tensor) -> None:
        assert key == "hidden_states"
        self.taken.append((first, tensor))


def test_commands_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = re.findall(r"^make ([a-z]+)", "\n".join(blocks("sh", README)), re.MULTILINE)
    assert {"demo", "test"} <= set(shown) <= targets


def commands() -> list[list[str]]:
    """Every `mmcached …` line of the page's shell blocks that works with a service with workers, without `mmcached`."""
    lines = [line for block in blocks("sh", START) for line in block.splitlines() if line.startswith("mmcached ")]
    return [words for line in lines if "0" not in (words := shlex.split(line, comments=True)[1:])]


def start(run_dir: Path) -> subprocess.Popen[str]:
    """Start a service with the page's own `serve` line; return once it says that it is ready."""
    (serve,) = [words for words in commands() if words[0] == "serve"]
    command = [sys.executable, "-m", "mmcached", *in_run_dir(serve, run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("mmcached ready")
    return process


def in_run_dir(words: list[str], run_dir: Path) -> list[str]:
    return [str(run_dir) if words[index - 1] == "--run-dir" else word for index, word in enumerate(words)]


def finish(process: subprocess.Popen[str]) -> int:
    process.terminate()
    if process.stdout is not None:
        process.stdout.close()
    return process.wait(DEADLINE_S)


def test_every_command_works_as_shown(run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real service; the verbs that look at it in this process, where none costs imports."""
    monkeypatch.chdir(tmp_path)
    process = start(run_dir / "s")
    try:
        # `bench` takes a minute, and `demo --vllm` needs vLLM: tests/hosts/vllm/test_demo.py runs it.
        verbs = [words for words in commands() if words[0] not in ("serve", "bench", "demo")]
        shown = [*["config"] * 3, "doctor", "status", "top", "ping", "info", "keys", "shm", "flush", "drain"]
        assert [words[0] for words in verbs] == shown
        for words in verbs:
            done = mmcached(*in_run_dir(words, run_dir / "s"))
            assert done.returncode == 0, (words, done.stdout, done.stderr)
        assert process.wait(DEADLINE_S) == 0, "the last verb was drain"
        assert mmcached("ping", "--run-dir", str(run_dir / "s")).returncode == 3, "there is no service any more"
    finally:
        assert finish(process) == 0
