"""Removes one rule at a time from a store of several segments."""

from __future__ import annotations

from dataclasses import replace

from scripts.verification.mutants import Mutant
from scripts.verification.replay import Machine
from scripts.verification.segment_frontend import (
    Evict,
    Frontend,
    Grant,
    Receive,
    Row,
)
from scripts.verification.segment_peers import Writer
from scripts.verification.segment_world import Scenario, Setting
from scripts.verification.weak_memory import Order


class GrantsWithoutSeal(Frontend):
    def seal(self, slot: int) -> bool:
        return True


class GrantsBeforeTheSeal(Frontend):
    """Tells the writer that a place is free, then looks whether somebody reads there."""

    def vacate(self, row: Row) -> bool:
        self.free(row.place)
        self.grant(1)
        return super().vacate(row)


class WriterBeyondItsWords(Writer):
    """Goes on with its oldest place when it has no other."""

    def next_place(self, machine: Machine, number: int) -> int | None:
        return self.the_map.places(self.segment)[0]


REUSED = Setting(script=(Evict(0), Grant(), Receive()))


def _mutant(name: str, breaks: str, setting: Setting, *, order: Order = Order.TSO) -> Mutant[Scenario]:
    return Mutant(name, Scenario(name, setting, order), breaks)


MUTANTS = (
    _mutant("a place is granted without a seal", "I1", replace(REUSED, frontend=GrantsWithoutSeal)),
    _mutant("a place is granted before the seal", "I1", replace(REUSED, frontend=GrantsBeforeTheSeal)),
    _mutant("a writer fills what it was not granted", "I1", replace(REUSED, writer=WriterBeyondItsWords)),
)
