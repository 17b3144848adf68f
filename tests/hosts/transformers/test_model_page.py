"""The page model.md is true: its commands and its code run in order, as they stand there, as a new user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
import transformers

from tests.docs.pages import blocks, shell_lines
from tests.hosts.transformers.language_models import save, write_chat_tokenizer
from tests.house import REPOSITORY
from tests.integration.processes import DEADLINE_S

pytestmark = pytest.mark.usefixtures("one_thread")

PAGE = "docs/model.md"
VOCABULARY = 8192
"""The page has ids beyond the tests' vocabulary."""
ENVIRONMENT = {"MMC_STORE_GB": "0.02", "MMC_MM_PROCESSOR_CACHE_GB": "0.02", "MMC_DEVICE": "cpu"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a checkpoint with a chat template, whose likely tokens are those of its tokenizer."""
    folder = save("llama", tmp_path / "checkpoint", vocab_size=VOCABULARY)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = write_chat_tokenizer(folder)
    with torch.no_grad():
        model.lm_head.weight.mul_(4)
        model.lm_head.weight[len(tokenizer) :] = 0
    model.save_pretrained(folder)
    return folder


class Walk:
    """The page's commands, each in a process of its own that runs until the next service starts.

    Attributes:
        places: What stands for each place on the page.
    """

    def __init__(self, run_dir: Path, folder: Path) -> None:
        self.places = {"/tmp/my-model": str(run_dir / "m"), "/tmp/my-rows": str(run_dir / "r"), "DIR": str(folder)}
        self._running = ExitStack()

    def command(self, words: list[str]) -> None:
        match [self.places.get(word, word) for word in words]:
            case ["pip", *_]:
                pass
            case ["mmcached", "serve", *rest]:
                self.stop()
                assert self._start("-m", "mmcached", "serve", *rest).startswith("mmcached ready")
            case ["python", "examples/openai_server.py", where, "8000"]:
                self.places["http://127.0.0.1:8000/v1"] = self._start("examples/openai_server.py", where, "0").strip()
            case others:
                raise AssertionError(f"a command that is not run: {others}")

    def code(self, text: str) -> None:
        text = re.sub("|".join(map(re.escape, self.places)), lambda found: self.places[found[0]], text)
        exec(compile(text, PAGE, "exec"), {})

    def stop(self) -> None:
        self._running.close()

    def _start(self, *words: str) -> str:
        """Start a program; return its first line."""
        process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, **ENVIRONMENT},
        )
        self._running.callback(_end, process)
        assert process.stdout is not None
        return process.stdout.readline()


def _end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(DEADLINE_S)


@pytest.fixture
def walk(run_dir: Path, folder: Path) -> Iterator[Walk]:
    walk = Walk(run_dir, folder)
    try:
        yield walk
    finally:
        walk.stop()


@pytest.mark.timeout(600)
def test_the_commands_and_the_code_do_what_the_page_says(walk: Walk, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for block in blocks():
        if block.page == PAGE and block.language == "sh":
            for words in shell_lines(block.text):
                walk.command(words)
        elif block.page == PAGE:
            assert block.language == "py"
            capsys.readouterr()
            walk.code(block.text)
            printed.append(capsys.readouterr().out.splitlines())
    prompts, chats, openai, rows = printed
    assert re.fullmatch(r"\[.*\] (length|stop) 0", prompts[0])
    shape = re.fullmatch(r"torch\.Size\(\[(\d+), 64\]\)", prompts[2])
    assert shape is not None
    assert prompts[-1].startswith("Generation(tokens=")
    assert "TokenUsage(num_prompt_tokens=" in "".join(chats)
    assert "".join(openai)
    names = ["hidden_states", "hidden_states.layer_0", "hidden_states.layer_1"]
    assert rows[:-1] == [
        *(f"{name} float32 (-1, 64)" for name in [*names, "layers.1.mlp"]),
        "layers.0.self_attn.q_proj float32 (-1, 64)",
    ]
    assert rows[-1] == shape[0]
