"""The names in the code of a function, and a digest of that code."""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

from blake3 import blake3


def names_in(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in a function, and in the functions that it defines."""
    inner = (names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*inner)


def paths_in(code: CodeType) -> set[tuple[str, ...]]:
    """Return the globals in a function and its inner functions, each with the attributes taken of it."""
    found: set[tuple[str, ...]] = set()
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, instruction.argval)
            continue
        if path:
            found.add(path)
        path = (instruction.argval,) if instruction.opname == "LOAD_GLOBAL" else ()
    return found.union(*(paths_in(each) for each in code.co_consts if isinstance(each, CodeType)))


def text_of(code: CodeType) -> str:
    """Return a digest of a function's code, without its name and source position."""
    return blake3(repr(_parts_of(code)).encode()).hexdigest(length=16)


def _parts_of(value: Any) -> Any:
    """Return code and its constants in a form with the same `repr` in every process."""
    if isinstance(value, CodeType):
        return (
            *(value.co_code, value.co_exceptiontable, value.co_flags, value.co_names),
            *(value.co_varnames, value.co_freevars, value.co_cellvars),
            *(value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount),
            [_parts_of(each) for each in value.co_consts],
        )
    if isinstance(value, tuple):
        return [_parts_of(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(repr(_parts_of(each)) for each in value)
    return type(value).__name__, value
