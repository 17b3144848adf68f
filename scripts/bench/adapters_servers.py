"""Starts vLLM's OpenAI servers on the CPU for measurements, and times their answers."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from scripts.bench.harness import Unavailable, wall_us
from scripts.bench.sidecar_processes import frontend
from tests.hosts.prompts import Content, image, text
from tests.hosts.vllm.servers import VllmServer

SIDE = 448
SMALL_TOWER = ("--depth", "4", "--width", "128")
SMALL_IMAGE = "448 px, 1 M tower"
_numbers = count()


def start_store(stack: ExitStack, store_gb: float = 0.25) -> Path:
    run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    stack.enter_context(frontend(run_dir, store_gb=store_gb))
    return run_dir


def make_checkpoint(stack: ExitStack, *words: str, kind: str = "qwen2_5_vl", max_pixels: int = SIDE * SIDE) -> Path:
    """Write a checkpoint; `words` are further options of `tests.hosts.checkpoints`."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    command = ["-m", "tests.hosts.checkpoints", kind, str(folder), "--max-pixels", str(max_pixels), *words]
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    return folder


def start_servers(
    stack: ExitStack,
    options: Sequence[Mapping[str, Any]],
    checkpoint: Path,
    environments: Sequence[Mapping[str, str]] = (),
) -> list[VllmServer]:
    """Start servers of one checkpoint, one for each set of options, and have each answer a few times.

    Args:
        environments: Further variables of each server, or empty.
    """
    if find_spec("vllm") is None:
        raise Unavailable("vLLM is not installed here")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmc-")))
    usual = {"max-num-batched-tokens": 2048, "enable-prefix-caching": True, "mm-processor-cache-gb": 0}
    servers = []
    for number, own in enumerate(options):
        environment = environments[number] if environments else {}
        servers.append(VllmServer(checkpoint, folder / f"{number}.log", usual | dict(own), environment))
        stack.callback(servers[-1].stop)
    for server in servers:
        server.wait_until_ready()
    for number in range(2):
        for server in servers:
            server.ask(about(number), max_tokens=1)
            server.ask([text("What?")], max_tokens=1)
    return servers


def about(number: int, side: int = SIDE) -> Content:
    """Return a message about an image, with a beginning that no other has."""
    return [text(f"{next(_numbers):06}"), image(number, side), text("What?")]


def words(num_tokens: int) -> Content:
    """Return a message of about as many tokens, with a beginning that no other has."""
    return [text(f"{next(_numbers):06} What?" + "a" * num_tokens)]


def first_token_ms(server: VllmServer, message: Content) -> float:
    return wall_us(lambda: server.ask(message, max_tokens=1)) / 1000
