"""Takes one rule out of the product while something is played: see `scripts.verification.mutants`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pytest

from scripts.verification.mutants import Mutant

Removal = Callable[[pytest.MonkeyPatch], None]
"""Replaces a method of a class, by one that does not keep the rule."""


def mutants(*removals: Removal) -> list[Mutant[Removal]]:
    """Return the product without a rule for each removal, named as it is."""
    return [Mutant(removal.__name__.replace("_", " "), removal) for removal in removals]


def without_it(play: Callable[[int], object], seeds: Iterable[int]) -> Iterator[Callable[[Removal], None]]:
    """Yield a play for each seed, which a removal lasts for."""

    def played(seed: int, removal: Removal) -> None:
        with pytest.MonkeyPatch.context() as patch:
            removal(patch)
            play(seed)

    return (partial(played, seed) for seed in seeds)
