"""Whole SGLang servers, one after the other: the second does not run the processor for what the first has processed."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import pytest

from mmcached.client import Client
from tests.hosts.prompts import image, text
from tests.hosts.sglang import processor_count
from tests.hosts.sglang.test_servers import ask, server
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually

SHARED = "mmcached: processed inputs are shared with the SGLang processes of this host"
"""The page says that this is in the log, at SGLang's default level."""


def named(number: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return a picture's file, and the part of a message that names its content."""
    content = base64.b64decode(image(number)["image_url"]["url"].partition(",")[2])
    path = folder / f"{number}.png"
    path.write_bytes(content)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return path, {"type": "image_url", "image_url": {"url": f"file://{path}", "content_hash": digest}}


def assert_near(said: list[tuple[str, float]], wanted: list[tuple[str, float]]) -> None:
    assert [token for token, _ in said] == [token for token, _ in wanted]
    assert [number for _, number in said] == pytest.approx([number for _, number in wanted], abs=1e-4)


@pytest.mark.slow
def test_a_second_server_does_not_run_the_processor(checkpoint: Path, store: LoneFrontend, tmp_path: Path) -> None:
    asked = {"MMCACHED_SGLANG": "processed_inputs,engine_cache", "MMCACHED_RUN_DIR": str(store.directory.path)}
    one, other = tmp_path / "one", tmp_path / "other"
    trusting = ["--trust-mm-content-hashes"]
    path, content = named(6, tmp_path)
    questions = [[image(1), text("what")], [image(1), image(2), text("where")], [content, text("named")]]
    with server(checkpoint, tmp_path / "one.log", asked | processor_count.provide(one), *trusting) as port:
        said = [ask(port, *question) for question in questions]
        assert processor_count.num_processed(one) == 3
        with Client(store.directory.path) as client:  # the answer does not wait for the store
            eventually(lambda: client.keys("processed-item/*/counts"), lambda keys: len(keys) == 3, "all are put")
    path.unlink()
    with server(checkpoint, tmp_path / "other.log", asked | processor_count.provide(other), *trusting) as port:
        assert [ask(port, *question) for question in questions] == said
        assert processor_count.num_processed(other) == 0
        ask(port, image(3), text("new"))
        assert processor_count.num_processed(other) == 1
        store.kill()
        # SGLang computes other parts of a prompt that it knows, and so rounds otherwise: not exactly equal.
        assert_near(ask(port, *questions[1]), said[1])
        ask(port, image(4), text("alone"))
        alone = processor_count.num_processed(other)
        store.start()
        assert_near(ask(port, *questions[0]), said[0])
    assert alone <= 4, "what it had, and each picture once"
    assert all(SHARED in (tmp_path / name).read_text() for name in ("one.log", "other.log"))
