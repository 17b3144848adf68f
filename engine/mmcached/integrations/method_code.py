"""Names in the code of a class's methods: what a model's encoding may read of the model."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType


def names_behind(kind: type, methods: Iterable[str]) -> Iterator[str]:
    """Yield the names in the code of a model's methods, and of further methods that these name."""
    seen: set[str] = set()
    ahead = list(methods)
    while ahead:
        name = ahead.pop()
        if name in seen:
            continue
        seen.add(name)
        for owner in kind.__mro__:
            method = inspect.unwrap(getattr(vars(owner).get(name), "__func__", vars(owner).get(name)))  # type: ignore[arg-type]
            if isinstance(method, FunctionType):
                names = list(_names_in(method.__code__))
                yield from names
                ahead += names


def _names_in(code: CodeType) -> Iterable[str]:
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _names_in(value)
