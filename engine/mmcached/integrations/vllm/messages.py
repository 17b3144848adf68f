"""Holds what goes from the scheduler's half to the workers' with each step, and what comes back.

    StepPlan    with the scheduler's output, by the executor's own means, to every rank
    StepReport  with the runner's output; vLLM merges those of the ranks

Knows nothing of vLLM: the connector declares both to be of vLLM's kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Load(NamedTuple):
    """An item that is in the store.

    Attributes:
        name: vLLM's identifier of it.
        key: of its record.
        token: of the lease that the scheduler holds until every rank has read.
        num_rows, width: of the embedding, as the request and the model expect them.
        request_id, item: the request, and which of its items.
        is_scheduled: the request takes part in this step, so the item can be encoded after all.
        can_be_encoded: there is something to encode; else the record is all there is.
    """

    name: str
    key: str
    token: str
    num_rows: int
    width: int
    request_id: str
    item: int
    is_scheduled: bool = True
    can_be_encoded: bool = True


@dataclass(slots=True)
class StepPlan:
    """What the workers do in one step.

    Attributes:
        saves: keys of the items that are encoded in it, and of those that a producer has and the store has not.
        scheduled: the very dict of the scheduler's output, so the same object also where both have been sent to: what
            is added here is encoded.
    """

    step: int
    loads: list[Load] = field(default_factory=list)
    saves: dict[str, str] = field(default_factory=dict)
    scheduled: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class StepReport:
    """What workers have done.

    Attributes:
        step: all loads up to that step have ended.
        num_ranks: how many say so.
        ended: keys of saves that have ended, now or earlier, and how: see `Saver`.
        lost: requests that have got rows of zeros, because nothing else was there.
        counts: figures since the last report, see `metrics`.
    """

    step: int
    num_ranks: int = 1
    ended: list[tuple[str, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    counts: Mapping[str, float] = field(default_factory=dict)

    def aggregate(self, other: StepReport) -> StepReport:
        """Return what both say together."""
        return StepReport(
            min(self.step, other.step),
            self.num_ranks + other.num_ranks,
            self.ended + other.ended,
            self.lost + [each for each in other.lost if each not in self.lost],
            Counter(self.counts) + Counter(other.counts),
        )
