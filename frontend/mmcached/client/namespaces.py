"""Prefixes for the keys of a client: the common part of `Namespace` and `AsyncNamespace`."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from mmcached.client.arguments import MAX_NAME_CHARACTERS, checked_key, checked_keys, checked_match, invalid, text_of

ClientT = TypeVar("ClientT")
P = ParamSpec("P")
T = TypeVar("T")


class BaseNamespace(Generic[ClientT]):
    """The keys of a client that begin with a name and "/".

    Attributes:
        name: Name of the namespace.
    """

    def __init__(self, client: ClientT, name: str) -> None:
        text = text_of(name)
        if not text or len(text) >= MAX_NAME_CHARACTERS:
            raise invalid("name", name, f"text of 1 to {MAX_NAME_CHARACTERS - 1} characters")
        self.name = text
        self._client = client
        self._prefix = f"{text}/"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} of {self._client!r})"

    def _key_of(self, key: str) -> str:
        return self._prefix + checked_key(key)

    def _keys_of(self, keys: Sequence[str]) -> list[str]:
        return [self._prefix + key for key in checked_keys(keys)]

    def _match_of(self, match: str) -> str:
        return glob.escape(self._prefix) + checked_match(match)

    def _own(self, keys: list[str]) -> list[str]:
        return [key.removeprefix(self._prefix) for key in keys]


def prefixed(
    method: Callable[Concatenate[ClientT, str, P], T],
) -> Callable[Concatenate[BaseNamespace[ClientT], str, P], T]:
    """Return a client's method for the keys of a namespace; its key is the first argument."""

    @wraps(method)
    def call(space: BaseNamespace[ClientT], key: str, /, *values: Any, **named: Any) -> T:
        return method(space._client, space._key_of(key), *values, **named)

    return call


def prefixed_many(
    method: Callable[Concatenate[ClientT, Sequence[str], P], T],
) -> Callable[Concatenate[BaseNamespace[ClientT], Sequence[str], P], T]:
    """Return as `prefixed` a method whose first argument is a sequence of keys."""

    @wraps(method)
    def call(space: BaseNamespace[ClientT], keys: Sequence[str], /, *values: Any, **named: Any) -> T:
        return method(space._client, space._keys_of(keys), *values, **named)

    return call
