"""The product with one rule removed, and what it means to notice that: a check that cannot fail proves nothing.

Knows nothing of what is played: a mutant's subject is whatever its players take in the product's place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

Subject = TypeVar("Subject")


class Unnoticed(AssertionError):
    """All plays have passed without the rule: they do not need it, or cannot see that it is gone."""


@dataclass(frozen=True, slots=True)
class Mutant(Generic[Subject]):
    """One rule, removed.

    Attributes:
        name: of the rule that is missing, or of what is done instead.
        subject: what plays in the product's place.
        breaks: how the text of what is noticed begins: the invariant, or the error; empty if any will do.
    """

    name: str
    subject: Subject
    breaks: str = ""

    def __str__(self) -> str:
        return self.name


def notice(
    mutant: Mutant[Subject],
    plays: Iterable[Callable[[Subject], object]],
    notices: type[BaseException] | tuple[type[BaseException], ...],
) -> BaseException:
    """Play with a mutant, one play after the other, until one raises what tells it from the product; return that.

    Raises:
        Unnoticed: none does, or the first that does says something else than the mutant breaks.
    """
    for play in plays:
        try:
            play(mutant.subject)
        except notices as error:
            if not str(error).startswith(mutant.breaks):
                raise Unnoticed(f"{mutant}: not {mutant.breaks}, but {error}") from error
            return error
    raise Unnoticed(f"{mutant}: every play has passed")
