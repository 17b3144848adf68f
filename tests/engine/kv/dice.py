"""One number that answers many small questions: so a random history is a list of names and numbers, made small easily.

>>> dice = Dice(7 * 60 + 5)
>>> dice.below(60), dice.below(10), dice.is_one_in(2)
(5, 7, False)
"""

from __future__ import annotations

NUMBERS = 1 << 48
"""Numbers are drawn from below this; it is enough for a dozen questions."""


class Dice:
    """What a number says, digit after digit; 0 is the plainest answer to everything."""

    def __init__(self, number: int) -> None:
        self._number = number

    def below(self, limit: int) -> int:
        self._number, digit = divmod(self._number, limit)
        return digit

    def is_one_in(self, count: int) -> bool:
        return self.below(count) == count - 1
