"""Which of a step's outputs are per-token rows, and the rows of each.

Knows nothing of requests. A tensor `(tokens, width)` of a step looks like rows; a constant can look so too, in a step
that happens to have as many tokens. So an output is, by its name:

    known        it was declared, or named as deferred, or has had two different lengths, each that of its step
    undecided    it has had one such length: its rows are kept, in case; nobody is served from them
    refused      it was undecided and then had another length than its step: it is no rows, its rows are forgotten
    anything     all the rest, such as tensors of other dimensions

With `discover="first"` the first length decides, as in the seed: a constant that meets a step of its own length is a
key for good then, and every step of another length is an error for it.

A key that was discovered by two lengths and then has a length that is not its step's is refused from there on, and
said so once. Per-request outputs are known in this way for as long as every request has one token a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.integers import as_integer
from mmcached.worker.omni.row_store import RowStore, check_dtype

Discover = Literal["two_lengths", "first"]
MakeStore = Callable[[str, int, torch.dtype], RowStore]


@dataclass(frozen=True, slots=True)
class _Undecided:
    store: RowStore
    length: int


class KeyBook:
    """Names of outputs -> their rows.

    Args:
        make_store: name, width, dtype -> rows.

    Attributes:
        known: rows of the keys.
    """

    def __init__(self, make_store: MakeStore, discover: Discover) -> None:
        if discover not in ("two_lengths", "first"):
            raise InvalidRequest("discover", discover, 'must be "two_lengths" or "first"')
        self._make_store = make_store
        self._discover = discover
        self.known: dict[str, RowStore] = {}
        self._undecided: dict[str, _Undecided] = {}
        self._refused: set[str] = set()
        self._by_two_lengths: set[str] = set()

    def declare(self, key: str, width: int, dtype: torch.dtype) -> RowStore:
        """Make `key` known, or compare it with what is known.

        Raises:
            InvalidRequest: it is known with another width or dtype.
            ConfigError: there is no memory for its rows.
        """
        check_dtype(key, dtype)
        if as_integer(f"{key}.width", width) < 1:
            raise InvalidRequest(f"{key}.width", width, "must be at least 1")
        store = self.known.get(key)
        if store is None:
            undecided = self._undecided.get(key)
            is_fit = undecided is not None and (undecided.store.width, undecided.store.dtype) == (width, dtype)
            store = undecided.store if undecided is not None and is_fit else self._make_store(key, width, dtype)
            self._learn(key, store)
        elif (store.width, store.dtype) != (width, dtype):
            given, is_so = f"width {width}, {dtype}", f"must be width {store.width}, {store.dtype}"
            raise InvalidRequest(key, given, is_so)
        self._by_two_lengths.discard(key)  # what is declared stays a key, whatever its lengths
        return store

    def observe(
        self, outputs: Mapping[str, Any], lengths: Collection[int], declared: Collection[str] = ()
    ) -> list[InvalidRequest]:
        """Look at the outputs of a step whose outputs of rows have one of `lengths`; return what went wrong.

        Args:
            declared: keys that are rows if they look like it.
        """
        errors: list[InvalidRequest] = []
        for key, value in outputs.items():
            if key in self.known:
                continue
            looks_like_rows = isinstance(value, torch.Tensor) and value.ndim == 2 and len(value) in lengths
            if looks_like_rows and value.shape[1]:
                try:
                    if key in declared:
                        self.declare(key, value.shape[1], value.dtype)
                    elif key not in self._refused:
                        self._see(key, value)
                except InvalidRequest as error:  # no memory for its rows: the others have theirs
                    errors.append(error)
            elif isinstance(value, torch.Tensor) and key in self._undecided:
                del self._undecided[key]
                self._refused.add(key)
        return errors

    def refuse(self, key: str) -> bool:
        """Refuse a key that two lengths have made known, return whether it was one; a declared one stays."""
        if key not in self._by_two_lengths:
            return False
        self._by_two_lengths.discard(key)
        del self.known[key]
        self._refused.add(key)
        return True

    def undecided(self) -> Iterator[RowStore]:
        """Yield the rows of the undecided keys."""
        for seen in self._undecided.values():
            yield seen.store

    def may_be_rows(self, key: str, value: object) -> RowStore | None:
        """Return the rows of an undecided key if `value` looks like what has made it one."""
        seen = self._undecided.get(key)
        if seen is None or not isinstance(value, torch.Tensor) or value.shape != (seen.length, seen.store.width):
            return None
        return seen.store if value.dtype == seen.store.dtype else None

    def _see(self, key: str, value: torch.Tensor) -> None:
        seen = self._undecided.get(key)
        if seen is not None and (seen.store.width, seen.store.dtype) == (value.shape[1], value.dtype):
            if seen.length != len(value):
                self._learn(key, seen.store)
                self._by_two_lengths.add(key)
            return
        store = self._make_store(key, value.shape[1], value.dtype)
        if self._discover == "first":
            self._learn(key, store)
        else:
            self._undecided[key] = _Undecided(store, len(value))

    def _learn(self, key: str, store: RowStore) -> None:
        self._undecided.pop(key, None)
        self._refused.discard(key)
        self.known[key] = store
