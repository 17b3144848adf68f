"""Lists what is explored of the protocol as it is, and what a world is made of.

Small scenarios are part of the suite, the large ones of the soak; none is cut off: each is explored to its last state.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from scripts.verification.explorer import Explorer, Finding
from scripts.verification.lease_between import UNIT, SmallLayout, modelled_locks
from scripts.verification.lease_engine import Engine
from scripts.verification.lease_ring import Ring
from scripts.verification.lease_worker import Worker
from scripts.verification.lease_world import Budget, World


@dataclass(frozen=True, slots=True)
class Actors:
    """The classes that play; a mutant brings another one."""

    ring: type[Ring] = Ring
    engine: type[Engine] = Engine
    worker: type[Worker] = Worker
    has_overdue_kills: bool = True


@dataclass(frozen=True, slots=True)
class Setting:
    """What does not change in a world.

    Attributes:
        units: size of the ring; at the start of an epoch a chunk of one unit lies in each slot that there is room for.
        put_units: sizes that are put.
        max_barriers: questions and answers that may be under way at a time; P0 asks at any time, but not without end.
        started: what has attached before the exploration begins.
    """

    actors: Actors = field(default_factory=Actors)
    num_readers: int = 2
    num_slots: int = 1
    units: int = 1
    put_units: tuple[int, ...] = (1,)
    num_ranks: int = 1
    max_barriers: int = 0
    quota_bytes: int | None = None
    started: Literal["nothing", "engine", "all"] = "nothing"

    def new_ring(self, epoch: int) -> Ring:
        layout = SmallLayout(self.units * UNIT, self.num_slots, self.num_readers)
        ring = self.actors.ring.create(layout, epoch=epoch, quota_bytes=self.quota_bytes)
        for _ in range(min(self.num_slots, self.units)):
            ring.put(1)
        return ring


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    setting: Setting
    budget: Budget

    def explore(self, *, limit: int | None = None) -> Finding:
        """Look at every state that can be reached.

        Args:
            limit: stop after so many states.
        """
        with modelled_locks():
            return Explorer(World.start(self.setting, self.budget), limit=limit).run()


_ATTACHED = Setting(started="all")
_NOTHING_BUT_ENGINES = Setting(num_ranks=0)

SMALL = (
    Scenario("a kill while everybody attaches", Setting(), Budget(kills=1)),
    Scenario("two kills while engines attach", _NOTHING_BUT_ENGINES, Budget(kills=2)),
    Scenario("a Hello comes twice", Setting(), Budget(puts=1, grants=1, plans=1, hellos=1)),
    Scenario("a kill at any step, from the first process on", Setting(), Budget(puts=1, grants=1, plans=1, kills=1)),
    Scenario("a kill at any step of two leases", _ATTACHED, Budget(puts=1, grants=2, plans=1, kills=1)),
    Scenario("two plans under one lease", _ATTACHED, Budget(puts=1, grants=2, plans=2)),
    Scenario("two workers read", Setting(started="all", num_ranks=2), Budget(puts=1, grants=2, plans=2)),
    Scenario("a plan is lost", _ATTACHED, Budget(puts=1, grants=1, plans=2, lost_plans=1)),
    Scenario(
        "descriptors, questions and answers are lost",
        Setting(started="all", num_ranks=0, max_barriers=2),
        Budget(puts=1, grants=2, lost_from_writer=1, lost_to_writer=1),
    ),
    Scenario(
        "a descriptor is lost while another is read",
        Setting(started="all", max_barriers=1),
        Budget(puts=1, grants=2, plans=1, lost_from_writer=1),
    ),
    Scenario(
        "a kill while P0 asks what has arrived",
        Setting(started="all", max_barriers=1),
        Budget(puts=1, grants=1, plans=1, kills=1),
    ),
    Scenario("P0 starts anew", _ATTACHED, Budget(puts=1, grants=1, plans=1, restarts=1)),
    Scenario(
        "chunks of two sizes in two slots, one discarded under a lease",
        Setting(started="all", num_ranks=0, num_slots=2, units=2, put_units=(1, 2)),
        Budget(puts=2, grants=2, discards=1),
    ),
    Scenario(
        "a quota of one chunk",
        Setting(started="all", num_ranks=0, num_slots=2, units=2, quota_bytes=UNIT),
        Budget(puts=1, grants=3),
    ),
)

LARGE = (
    Scenario("two kills at any steps of a read", _ATTACHED, Budget(puts=1, grants=1, plans=1, kills=2)),
    Scenario(
        "a kill at any step of a read by two workers",
        Setting(started="all", num_ranks=2),
        Budget(puts=1, grants=1, plans=1, kills=1),
    ),
    Scenario("P0 starts anew, and a kill", _ATTACHED, Budget(puts=1, grants=1, plans=1, kills=1, restarts=1)),
    Scenario("a plan is lost, and a kill", _ATTACHED, Budget(puts=1, grants=1, plans=2, kills=1, lost_plans=1)),
    Scenario(
        "a kill and losses at any step of two leases",
        Setting(started="all", max_barriers=1),
        Budget(puts=1, grants=2, plans=1, kills=1, lost_from_writer=1, lost_to_writer=1),
    ),
    Scenario(
        "a kill while P0 asks twice",
        Setting(num_ranks=0, started="engine", max_barriers=2),
        Budget(puts=1, grants=2, kills=1, lost_from_writer=1, lost_to_writer=1),
    ),
    Scenario(
        "a kill at any step of two leases on chunks of two sizes",
        Setting(started="all", num_slots=2, units=2, put_units=(1, 2)),
        Budget(puts=2, grants=2, plans=1, kills=1, discards=1),
    ),
)
