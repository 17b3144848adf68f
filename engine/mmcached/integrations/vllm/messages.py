"""Defines the messages between the scheduler's half and the workers'.

    StepOrders  with the scheduler's output, by the executor's own means, to every rank
    StepReport  with the runner's output; vLLM merges those of the ranks

Imports nothing of vLLM: the connector registers both as vLLM's kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Load(NamedTuple):
    """An item to load from the store.

    Attributes:
        name: vLLM's identifier of the item.
        key: Key of its record.
        token: Token of the lease that the scheduler holds until every rank has read.
        num_rows, width: Shape of the embedding, as the request and the model expect it.
        request_id, item: The request, and the index of the item in it.
        is_scheduled: The request takes part in this step, so the item can be encoded if the load fails.
        can_be_encoded: The request has the item's data; otherwise only the record has the embedding.
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
class StepOrders:
    """The workers' orders for one step.

    Attributes:
        saves: Keys, by name, of the items encoded in this step, and of those that a producer has and the store lacks.
        scheduled: The very dict of the scheduler's output, so the same object also after both were sent to a worker: an
            item added here is encoded.
    """

    step: int
    loads: list[Load] = field(default_factory=list)
    saves: dict[str, str] = field(default_factory=dict)
    scheduled: dict[str, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class StepReport:
    """The workers' report after a step.

    Attributes:
        step: All loads up to that step have ended.
        num_ranks: Number of ranks that this report covers.
        ended: Keys of saves that have ended since the last report, with the outcome: see `Saver`.
        lost: Requests that got rows of zeros, because there was neither a record nor data to encode.
        counts: Figures since the last report, see `metrics`.
        is_written: A rank's tower was written to without a call that the scheduler sees.
    """

    step: int
    num_ranks: int = 1
    ended: list[tuple[str, str]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    counts: Mapping[str, float] = field(default_factory=dict)
    is_written: bool = False

    def aggregate(self, other: StepReport) -> StepReport:
        """Return the merged report of two groups of ranks."""
        return StepReport(
            min(self.step, other.step),
            self.num_ranks + other.num_ranks,
            self.ended + other.ended,
            self.lost + [each for each in other.lost if each not in self.lost],
            Counter(self.counts) + Counter(other.counts),
            self.is_written or other.is_written,
        )
