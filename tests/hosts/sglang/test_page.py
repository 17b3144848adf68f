"""SGLang's page is true: its commands start servers as they stand there, with a tiny checkpoint, which share."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest

from mmcached.client import Client
from tests.hosts.prompts import image, text
from tests.hosts.sglang import processor_count, tower_count
from tests.hosts.sglang.test_servers import ask, server
from tests.house import REPOSITORY
from tests.integration.lone_frontend import LoneFrontend
from tests.integration.processes import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
PAGE = REPOSITORY / "docs" / "hosts" / "sglang.md"
PROSE = " ".join(PAGE.read_text().split())
WHAT = {"engine_cache": "embeddings", "processed_inputs,engine_cache": "processed inputs"}
"""What the log names, by the kinds that are asked for."""
OF_THE_PLACE = ("--model-path", "--port", "--base-gpu-id")
"""Options that are others here."""


def launches(block: str) -> list[tuple[str, dict[str, str]]]:
    """Return the value of MMCACHED_SGLANG and the options of each server that a block of the page starts."""
    script = f"""
mmcached() {{ :; }}
pip() {{ :; }}
python() {{ printf '%s\\0' "$MMCACHED_SGLANG" "$@"; printf '\\n'; }}
{re.sub("&$", "", block, flags=re.MULTILINE)}"""
    environment = {"PATH": os.environ["PATH"]}
    said = subprocess.run(["bash", "-euc", script], env=environment, capture_output=True, check=True, text=True).stdout
    found = []
    for line in said.splitlines():
        kind, module, program, *words = line.split("\0")[:-1]
        assert (module, program) == ("-m", "sglang.launch_server")
        found.append((kind, dict(zip(words[::2], words[1::2], strict=True))))
    return found


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("kind", WHAT)
def test_the_second_server_encodes_and_processes_nothing(
    kind: str, checkpoint: Path, store: LoneFrontend, tmp_path: Path
) -> None:
    (lines,) = [found for found in map(launches, blocks()) if found[0][0] == kind]
    if len(lines) == 1:
        lines *= 2  # "a second or restarted server"
    said = []
    for number, (asked, options) in enumerate(lines):
        counts = tmp_path / f"{number}"
        environment = {"MMCACHED_SGLANG": asked, "MMCACHED_RUN_DIR": str(store.directory.path)}
        environment |= tower_count.provide(counts) | processor_count.provide(counts)
        words = shlex.split(" ".join(f"{name} {value}" for name, value in options.items() if name not in OF_THE_PLACE))
        with server(checkpoint, tmp_path / f"{number}.log", environment, *words) as port:
            said.append(ask(port, image(1), text("what")))
            with Client(store.directory.path) as client:
                eventually(partial(client.keys, "encoder/*"), bool, "it is saved")
        assert len(tower_count.encoded(counts)) == 1 - number
        if "processed_inputs" in kind:
            assert processor_count.num_processed(counts) == 1 - number
        (shared,) = re.findall(rf"`(mmcached: {WHAT[kind]} are shared with the SGLang processes of this host)`", PROSE)
        assert shared in (tmp_path / f"{number}.log").read_text()
    assert said[0] == said[1]
