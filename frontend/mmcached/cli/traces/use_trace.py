"""Uses of items over time, as every reader returns them.

A use is one request for one item. Of an item only its size, the cost of a miss and its modality are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class UseTrace:
    """Uses of items, in order of time.

    Attributes:
        keys: `(num_uses,)` int64, each an index into the arrays of items.
        times_s: `(num_uses,)` float64, seconds since the first use; None: not recorded.
        sizes: `(num_items,)` int64, bytes of an item's record.
        costs_s: `(num_items,)` float64, seconds that a miss costs.
        modalities: `(num_items,)`, one name each.
    """

    keys: npt.NDArray[np.int64]
    times_s: npt.NDArray[np.float64] | None
    sizes: npt.NDArray[np.int64]
    costs_s: npt.NDArray[np.float64]
    modalities: list[str]

    @property
    def total_s(self) -> float:
        """Seconds that all uses cost without a store."""
        return float(self.costs_s[self.keys].sum())

    @property
    def most_found(self) -> float:
        """The share of the uses that a store without a limit finds."""
        return 1 - len(np.unique(self.keys)) / len(self.keys)

    def at_rate(self, rate: float, seed: int = 0) -> UseTrace:
        """Return the same uses at another mean rate, in uses per second; random times where none are recorded."""
        if self.times_s is None:
            gaps = np.random.default_rng(seed).exponential(1 / rate, len(self.keys))
            return replace(self, times_s=np.cumsum(gaps) - gaps[0])
        length_s = float(self.times_s[-1])
        factor = len(self.keys) / rate / length_s if length_s else 0.0
        return replace(self, times_s=self.times_s * factor)

    def sampled(self, num_uses: int, seed: int = 0) -> tuple[UseTrace, float]:
        """Return the uses of a random part of the items, about `num_uses`, and the share of the items in it.

        A store of that share of the size finds about the same share of the uses. Source: SHARDS, FAST '15.
        """
        share = num_uses / len(self.keys)
        if share >= 1:
            return self, 1.0
        is_kept = np.random.default_rng(seed).random(len(self.sizes)) < share
        uses = np.flatnonzero(is_kept[self.keys])
        if not len(uses):
            return self, 1.0
        times_s = None if self.times_s is None else self.times_s[uses]
        bytes_share = self.sizes[is_kept].sum() / self.sizes.sum()
        return replace(self, keys=self.keys[uses], times_s=times_s), float(bytes_share)
