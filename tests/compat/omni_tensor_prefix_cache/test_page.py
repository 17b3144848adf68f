"""The example of docs/from-vllm-omni.md does what it says."""

from __future__ import annotations

import re

import torch

from tests.house import REPOSITORY


def test_the_example_runs() -> None:
    page = (REPOSITORY / "docs" / "from-vllm-omni.md").read_text()
    (example,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    exec(example, {"torch": torch})
