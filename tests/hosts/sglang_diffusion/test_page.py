"""The Python of docs/hosts/diffusion-servers.md, in whole servers of SGLang: a second server encodes nothing anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmcached.cli.serve.child_service import ChildService
from mmcached.client import Client
from tests.docs.pages import code
from tests.hosts.flux_checkpoint import write_flux
from tests.house import REPOSITORY
from tests.integration.processes import small_config

MAIN = """
if __name__ == "__main__":
    import json, sys
    # The model's id says which of SGLang's pipelines a folder has.
    found = pictures(sys.argv[1], json.loads(sys.argv[2]), size=16, model_id="FLUX.1-dev", backend=sys.argv[3])
    print("ANSWER", json.dumps([picture.tolist() for picture in found]))
"""
NUM_ENCODERS = 2
START_S = 400.0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sglang", "diffusers"])
def test_the_page(run_dir: Path, tmp_path: Path, backend: str) -> None:
    (block,) = code(REPOSITORY / "docs" / "hosts" / "diffusion-servers.md", "py")
    program = tmp_path / "program.py"
    program.write_text(block + MAIN)
    folder, prompts = write_flux(tmp_path / "flux"), ["a cat", "a dog"]
    wanted = _pictures(program, folder, prompts, backend, "")
    assert wanted[0] != wanted[1]
    with ChildService(run_dir, small_config(world_size=0), tmp_path / "config.json"), Client(run_dir) as client:
        for _ in range(2):
            assert _pictures(program, folder, prompts, backend, str(run_dir)) == wanted
            assert client.stats().store.puts == NUM_ENCODERS * len(prompts)


def _pictures(program: Path, folder: Path, prompts: list[str], backend: str, run_dir: str) -> list[Any]:
    """Run the page's program, whose server has a worker process that loads plug-ins."""
    environment = {**os.environ, "MMCACHED_CONDITIONING": run_dir}
    command = [sys.executable, str(program), str(folder), json.dumps(prompts), backend]
    done = subprocess.run(command, env=environment, cwd=folder, stdout=-1, text=True, timeout=START_S, check=True)
    _, mark, answer = done.stdout.partition("ANSWER ")
    assert mark, done.stdout
    pictures: list[Any] = json.loads(answer.splitlines()[0])
    return pictures
