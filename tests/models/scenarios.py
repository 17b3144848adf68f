"""What is explored of the protocol as it is. Small scenarios are part of the suite, the large ones of the soak; none is
cut off: each is explored to its last state.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.models.byte_locks import modelled_locks
from tests.models.control import UNIT
from tests.models.explorer import Explorer, Finding
from tests.models.lease_world import World
from tests.models.setting import Budget, Setting


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    setting: Setting
    budget: Budget


def explore(setting: Setting, budget: Budget, *, limit: int | None = None) -> Finding:
    """Look at every state that can be reached.

    Args:
        limit: stop after so many states.
    """
    with modelled_locks():
        return Explorer(World.start(setting, budget), limit=limit).run()


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
