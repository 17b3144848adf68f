"""Lets PyPI's torchvision, which is built for CUDA, be imported beside a torch for CPUs.

Its native library cannot be loaded there, so that nobody declares the operators which its Python code names at import.
Declared they are enough: image and video processors use only what is written in Python, and an operator that is called
still fails. As a program this installs itself: each process of the environment that runs it then declares them when,
and if, torchvision is imported.

    python tests/hosts/torchvision_on_cpu.py
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

NAMED_AT_IMPORT = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_declared: list[Any] = []
"""The declarations, which end with their object."""


class DeclareFirst:
    """Declares torchvision's operators when it is looked for, and leaves the finding to the others."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
            for schema in NAMED_AT_IMPORT:
                library.define(schema)
            _declared.append(library)
        return None


def main() -> None:
    packages = Path(sysconfig.get_path("purelib"))
    shutil.copy(__file__, packages)
    name = Path(__file__).stem
    (packages / f"{name}.pth").write_text(f"import {name}\n")


if __name__ == "__main__":
    main()
else:
    sys.meta_path.insert(0, DeclareFirst())
