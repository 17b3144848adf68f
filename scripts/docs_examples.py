"""Shows the examples of docstrings as code: an extension of griffe, named in `mkdocs.yml`."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r" *# doctest: .*$", re.MULTILINE)


class Examples(griffe.Extension):  # type: ignore[misc]  # not installed where types are checked
    """Puts a fence around each example."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the text of an object."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"```pycon\n{OPTION.sub('', found[0])}\n```", obj.docstring.value
            )
