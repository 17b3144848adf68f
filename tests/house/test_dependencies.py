"""What is installed with mmcached: listed with its licence, and no more for a client than a client imports."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata

from tests.house import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
IMPORT_NAMES = {"pillow": "PIL"}
REFUSED_LICENCES = re.compile(r"(?<![A-Z])A?GPL|SSPL|BUSL")


def names(requirements: list[str]) -> list[str]:
    return [re.split(r"[><=\[; ]", requirement)[0] for requirement in requirements]


def listed() -> dict[str, str]:
    """Licences by package, as the page says."""
    rows = re.findall(r"^\| ([\w-]+) \| (.+?) \|", (REPOSITORY / "docs" / "dependencies.md").read_text(), re.MULTILINE)
    return {name: licence for name, licence in rows if name != "package"}


def test_every_dependency_is_listed_once_with_the_licence_that_it_states() -> None:
    extras = PROJECT["optional-dependencies"]
    own = [name for extra in ("video", "audio", "demo") for name in names(extras[extra][1:])]
    own += names(extras["otel"])
    wanted = [*names(PROJECT["dependencies"]), *names(extras["store"]), *names(extras["service"][1:]), *own]
    assert list(listed()) == wanted
    for name, licence in listed().items():
        stated = metadata.metadata(name)
        expression = next((stated[key] for key in ("License-Expression", "License") if key in stated), "")
        assert licence.removesuffix(" AND more") in expression, name
        # A whole text in place of a name also has the licences of what is inside the wheel, of which the page speaks.
        of_itself = " ".join(stated.get_all("Classifier", [])) if "\n" in expression else expression
        assert not REFUSED_LICENCES.search(of_itself), name


def test_a_client_and_the_caches_work_without_what_the_service_needs() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = names(extras["store"] + extras["service"][1:])
    of_service = [IMPORT_NAMES.get(name, name.replace("-", "_")) for name in wanted]
    without = f"import sys; sys.modules.update(dict.fromkeys({of_service})); "
    packages = ("mmcached.client", "mmcached.engine", "mmcached.shm", "mmcached.cache")
    run_python(without + "; ".join(f"from {package} import *" for package in packages))
    refused = run_python(without + "from mmcached.cli import main; main()", status=2)
    assert "pip install '.[store]'" in refused


def run_python(code: str, status: int = 0) -> str:
    """Run code in a process of its own; return what it wrote to stderr."""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert child.returncode == status, child.stderr
    return child.stderr
