"""Shows the examples of docstrings as code, and signatures as callers see them: extensions of griffe (`mkdocs.yml`)."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r" *# doctest: .*$", re.MULTILINE)
RETURNS = {"PieceStream": "Iterator[Piece]"}
"""What a caller gets from a call that is driven; `Verb[X]` and `Call[X]` are X."""
DEFAULTS = {"DEFAULT_LIBRARY": "'torch'"}
"""Values of the constants that are defaults and are computed."""


class Examples(griffe.Extension):  # type: ignore[misc]  # not installed where types are checked
    """Puts a fence around each example."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Change the text of an object."""
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"```pycon\n{OPTION.sub('', found[0])}\n```", obj.docstring.value
            )


class Signatures(griffe.Extension):  # type: ignore[misc]
    """Shows what a call returns instead of the verb that a client drives, and values instead of names of constants."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Change the functions of a package, when all of its modules are known."""
        modules, seen = [pkg], set()
        while modules:
            owner = modules.pop()
            for member in owner.members.values():
                if member.is_alias or member.path in seen:
                    continue
                seen.add(member.path)
                if member.is_function:
                    self._change(member)
                elif member.is_module or member.is_class:
                    modules.append(member)

    def _change(self, function: Any) -> None:
        returns = function.returns
        if isinstance(returns, griffe.ExprSubscript) and str(returns.left) in ("Verb", "Call"):
            function.returns = returns.slice
        elif str(returns) in RETURNS:
            function.returns = RETURNS[str(returns)]
        for parameter in function.parameters:
            if isinstance(parameter.default, griffe.ExprName):
                parameter.default = _value(function, str(parameter.default))


def _value(function: Any, name: str) -> str:
    """Return a constant's value as source, or its name where the value is computed from others."""
    if name in DEFAULTS:
        return DEFAULTS[name]
    try:
        constant = function.modules_collection[function.resolve(name)]
        value = str(constant.value) if constant.is_attribute else name
    except (KeyError, griffe.GriffeError):  # of a package that is not looked at
        return name
    return name if any(isinstance(node, ast.Name) for node in ast.walk(ast.parse(value, mode="eval"))) else value
