"""Decides which of a step's outputs are per-token rows, and keeps the memory (arena) of each.

Knows nothing of requests. A tensor `(tokens, width)` of a step may be rows; but a constant can have that shape too, in
a step that happens to have as many tokens. So an output is, by its name:

    known        it was declared, or named as deferred, or has had two different lengths, each that of its step
    undecided    it has had one such length: its rows are kept, but not delivered
    refused      it was undecided and then had another length than its step: not rows; the kept rows are removed
    anything     all the rest, such as tensors of other dimensions

With `discover="first"` the first length decides, as in vllm-omni: a constant that meets a step of its own length is a
key from then on. A key that two lengths have made known, and whose length then differs from its step's, is refused, and
reported once: per-request outputs are known for as long as every request has one token a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple

import torch

from mmcached.wire.errors import InvalidRequest
from mmcached.worker.hidden_states.row_arena import RowArena
from mmcached.worker.hidden_states.schema import KeySpec
from mmcached.worker.integers import as_integer

Discover = Literal["two_lengths", "first"]


class _Undecided(NamedTuple):
    arena: RowArena
    length: int


class OutputKeys:
    """Outputs that are rows, or may be; `known`: the arenas of the known ones."""

    def __init__(self, make_arena: Callable[[KeySpec], RowArena], discover: Discover) -> None:
        if discover not in ("two_lengths", "first"):
            raise InvalidRequest("discover", discover, 'must be "two_lengths" or "first"')
        self._make_arena = make_arena
        self._discover = discover
        self.known: dict[str, RowArena] = {}
        self._undecided: dict[str, _Undecided] = {}
        self._refused: set[str] = set()
        self._by_two_lengths: set[str] = set()

    @property
    def undecided(self) -> dict[str, RowArena]:
        """Arenas of the undecided keys."""
        return {key: seen.arena for key, seen in self._undecided.items()}

    @property
    def arenas(self) -> Collection[RowArena]:
        """All arenas, of known and of undecided keys."""
        known = self.known.values()
        return [*known, *self.undecided.values()] if self._undecided else known

    def declare(self, key: str, width: int, dtype: torch.dtype) -> None:
        """Make `key` known, or compare it with the known key.

        Raises:
            InvalidRequest: It is known with another width or dtype.
            ConfigError: There is no memory for its rows.
        """
        spec = key_spec(key, width, dtype)
        arena = self.known.get(key)
        if arena is None:
            seen = self._undecided.get(key)
            is_fit = seen is not None and seen.arena.spec == spec
            self._learn(seen.arena if seen is not None and is_fit else self._make_arena(spec))
        elif arena.spec != spec:
            is_so = f"must be width {arena.spec.shape[0]}, {arena.spec.dtype}"
            raise InvalidRequest(key, f"width {width}, {dtype}", is_so)
        self._by_two_lengths.discard(key)  # a declared output stays a key, for any lengths

    def observe(
        self, outputs: Mapping[str, Any], lengths: Collection[int], declared: Collection[str] = ()
    ) -> list[InvalidRequest]:
        """Classify the outputs of a step whose row outputs have one of `lengths`; return the errors.

        Args:
            declared: Keys that are rows if they have the form of rows.
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
        """Refuse a key that two lengths have made known; return False, unchanged, for any other key."""
        if key not in self._by_two_lengths:
            return False
        self._by_two_lengths.discard(key)
        del self.known[key]
        self._refused.add(key)
        return True

    def may_be_rows(self, key: str, value: object) -> RowArena | None:
        """Return the arena of an undecided key if `value` has the same shape and dtype as before; else None."""
        seen = self._undecided.get(key)
        if seen is None or not isinstance(value, torch.Tensor):
            return None
        is_alike = value.shape == (seen.length, *seen.arena.spec.shape) and value.dtype == seen.arena.spec.dtype
        return seen.arena if is_alike else None

    def _see(self, key: str, value: torch.Tensor) -> None:
        spec = key_spec(key, value.shape[1], value.dtype)
        seen = self._undecided.get(key)
        if seen is not None and seen.arena.spec == spec:
            if seen.length != len(value):
                self._learn(seen.arena)
                self._by_two_lengths.add(key)
        elif self._discover == "first":
            self._learn(self._make_arena(spec))
        else:
            self._undecided[key] = _Undecided(self._make_arena(spec), len(value))

    def _learn(self, arena: RowArena) -> None:
        key = arena.spec.name
        self._undecided.pop(key, None)
        self._refused.discard(key)
        self.known[key] = arena


def key_spec(key: str, width: int, dtype: torch.dtype) -> KeySpec:
    """Return the spec of a key with rows `(width,)`; raise InvalidRequest if it is invalid."""
    if not isinstance(dtype, torch.dtype):
        raise InvalidRequest(f"{key}.dtype", repr(dtype), "must be a torch.dtype")
    if as_integer(f"{key}.width", width) < 1:
        raise InvalidRequest(f"{key}.width", width, "must be at least 1")
    return KeySpec(key, (int(width),), dtype)
