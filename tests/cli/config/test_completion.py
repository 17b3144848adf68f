"""A shell that has loaded our completion proposes verbs, their options, and the flags of settings."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shm.processes import DEADLINE_S

ENVIRONMENT = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
COMPLETED = {
    "mmcached inf": "info",
    "mmcached config in": "init",
    "mmcached serve --run-d": "--run-dir",
    "mmcached serve --kv-events.b": "--kv-events.buffer-steps --kv-events.buffer-mb",
    "mmcached info st": "store",
}


def test_bash_completes_what_was_begun(tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    command = tmp_path / "mmcached"  # as an installed package has it
    command.write_text(f"#!{sys.executable}\nfrom mmcached.cli import main\nmain()\n")
    command.chmod(0o755)
    ask = "COMP_WORDS=({0}); COMP_CWORD={1}; _mmcached_completion mmcached; echo ${{COMPREPLY[@]}}"
    asks = [ask.format(line, len(line.split()) - 1) for line in COMPLETED]
    script = [
        f"export PATH={shlex.quote(str(tmp_path))}:$PATH HOME={shlex.quote(str(tmp_path))}",
        "mmcached --install-completion bash >/dev/null",
        "source ~/.bashrc",
        'test "$(mmcached --show-completion bash)" == "$(cat ~/.bash_completions/mmcached.sh)" || exit 1',
        *asks,
    ]
    done = subprocess.run(
        ["bash", "--norc", "-c", "\n".join(script)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout.splitlines() == list(COMPLETED.values()), done.stderr
