"""The example of docs/from-vllm-omni.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import torch


def test_the_example_runs() -> None:
    page = (Path(__file__).parents[4] / "docs" / "from-vllm-omni.md").read_text()
    (example,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    exec(example, {"torch": torch})
