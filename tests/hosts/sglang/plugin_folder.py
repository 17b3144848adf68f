"""Makes folders that bring a module of the tests into an SGLang server as a plugin."""

from __future__ import annotations

import os
from pathlib import Path


def provide(folder: Path, module: str, variable: str, file: str) -> dict[str, str]:
    """Return the environment of a server that loads the plugin of a module.

    Args:
        folder: Has the plugin and its file; it may have several plugins.
        module: Full name; its `register` is called in each process of the server.
        variable: Names the file for the module.
        file: Name of the file that the plugin writes into.
    """
    name = module.rpartition(".")[2]
    distribution = folder / f"{name}-1.dist-info"
    distribution.mkdir(parents=True, exist_ok=True)
    (distribution / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {module}:register\n")
    (folder / file).touch()
    path = os.pathsep.join(part for part in (str(folder), os.getcwd(), os.environ.get("PYTHONPATH")) if part)
    return {"PYTHONPATH": path, variable: str(folder / file)}
