"""Plain servers, one API process each, process a picture or a film once per host: real servers, over HTTP."""

from __future__ import annotations

import base64
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mmcached.cli.demo.random_checkpoint import CHAT, QWEN_IMAGE
from mmcached.cli.serve.child_service import ChildService
from mmcached.integrations.processed_inputs.vllm_plugin import NAMED, RUN_DIR
from tests.hosts.prompts import Content, image, text
from tests.hosts.vllm.servers import VllmServer, mmcached
from tests.hosts.vllm.sharing import ask_through
from tests.integration.processes import eventually, role_pids

OPTIONS: dict[str, Any] = {"limit-mm-per-prompt": {"image": 4, "video": 1}}
MEDIA = f"{{% if part.type == 'video' %}}{QWEN_IMAGE.replace('image', 'video')}{{% else %}}{QWEN_IMAGE}{{% endif %}}"
PICTURES: list[Content] = [
    [text("What?"), image(101)],
    [image(102), text("Which one?"), image(101)],
    [image(number) for number in (103, 104, 105)],
]


@pytest.fixture
def new_server(
    checkpoint: Callable[[str], Path], service_dir: Path, tmp_path: Path
) -> Iterator[Callable[..., VllmServer]]:
    template = CHAT.replace("IMAGE", MEDIA)
    with ExitStack() as stack:

        def start(name: str, *, shares: bool = True, options: dict[str, Any] | None = None) -> VllmServer:
            environment = {RUN_DIR: str(service_dir / "s"), NAMED: "1"} if shares else {}
            given = OPTIONS | {"chat-template": template, "allowed-local-media-path": str(tmp_path)} | (options or {})
            server = VllmServer(checkpoint("qwen2_5_vl"), tmp_path / f"{name}.log", given, environment)
            stack.callback(server.stop)
            return server

        yield start


def film(seed: int) -> dict[str, Any]:
    """Return the part of a message that brings a film of two seconds: squares that change."""
    draw = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "film.mp4")
        writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"mp4v"), 8.0, (112, 112))
        for _ in range(16):
            squares = draw.integers(0, 256, (7, 7, 3), dtype=np.uint8)
            writer.write(cv2.resize(squares, (112, 112), interpolation=cv2.INTER_NEAREST))
        writer.release()
        data = base64.b64encode(Path(path).read_bytes()).decode()
    return {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}


def work_of(server: VllmServer, messages: Sequence[Content]) -> tuple[list[Any], dict[str, int]]:
    """Return the answers to messages, and how often the API process ran its processor and decoded a film for them."""
    before = len(server.api_work())
    answers = [server.ask(message) for message in messages]
    done = server.api_work()[before:]
    return answers, {what: done.count(what) for what in ("processor", "video")}


def named(url: str | None) -> Content:
    """Return a message with a picture that has a name, and perhaps the address of its file."""
    return [text("What?"), {"type": "image_url", "image_url": {} if url is None else {"url": url}, "uuid": "my-cat"}]


def test_the_second_server_runs_no_processor(
    new_server: Callable[..., VllmServer], store: ChildService, tmp_path: Path
) -> None:
    """Nor does a restarted one; a film is decoded once; and a picture that has a name is read once."""
    messages = [*PICTURES, [film(1), text("What happens?")]]
    alone, first = new_server("alone", shares=False), new_server("first")
    for server in (alone, first):
        server.wait_until_ready()
    wanted, done = work_of(alone, messages)
    assert done == {"processor": 4, "video": 1}
    assert work_of(first, messages) == (wanted, {"processor": 4, "video": 1})
    assert work_of(first, messages) == (wanted, {"processor": 0, "video": 0})
    file = tmp_path / "cat.png"
    file.write_bytes(base64.b64decode(image(107)["image_url"]["url"].partition(",")[2]))
    ((cat,), _), (cats, _) = work_of(alone, [named(file.as_uri())]), work_of(first, [named(file.as_uri())])
    assert cats == [cat]
    file.unlink()
    alone.stop()
    second = new_server("second", options=mmcached(store.run_dir))
    second.wait_until_ready()
    assert work_of(second, messages) == (wanted, {"processor": 0, "video": 0})
    assert work_of(second, [named(None)]) == ([cat], {"processor": 0, "video": 0})
    first.kill()
    again = new_server("again", options={"mm-processor-cache-type": "shm"})
    again.wait_until_ready()
    assert work_of(again, messages) == (wanted, {"processor": 0, "video": 0})
    assert work_of(again, [named(None)]) == ([cat], {"processor": 0, "video": 0})
    _kill_the_store_under_load(store, [second, again], wanted)


def _kill_the_store_under_load(store: ChildService, servers: list[VllmServer], wanted: list[Any]) -> None:
    """Ask about known and new pictures while the frontend is killed: no answer is wrong, and none is missing."""
    new: list[Content] = [[text("And this?"), image(number)] for number in range(200, 220)]
    alone = [servers[0].ask(message) for message in new]  # encoded and processed here; the other has not seen them

    def kill() -> None:
        frontends = eventually(lambda: role_pids(store.process.pid)["frontend"], bool, "a frontend")
        os.kill(frontends[0], signal.SIGKILL)

    messages = [*PICTURES, *new]
    answers = ask_through([servers[1]], messages, trouble=kill, after=3)
    assert answers == [*wanted[: len(PICTURES)], *alone]
    assert ask_through(servers, messages, trouble=kill, after=3) == answers
