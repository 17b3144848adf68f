"""The Python of docs/hosts/diffusers.md runs as it stands there."""

from __future__ import annotations

from typing import Any

import pytest

from mmcached.client import Client
from tests.docs.pages import code
from tests.hosts.diffusers.pipelines import stable_diffusion
from tests.house import REPOSITORY


def test_the_page(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = code(REPOSITORY / "docs" / "hosts" / "diffusers.md", "py")
    space: dict[str, Any] = {}
    exec(block, space)
    pipeline = stable_diffusion()
    assert len(space["pictures"](pipeline, ["a cat", "a cat"], client.run_dir)) == 2
    assert "2 of 4 calls were found" in capsys.readouterr().out
