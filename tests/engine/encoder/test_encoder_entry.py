"""Entries that contradict the tables they are in are told from those that agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmcached.engine import SharedEncoderCacheManager
from mmcached.engine.encoder.encoder_entry import EncoderEntry, check_entries
from mmcached.wire.errors import InvariantError
from tests.engine.builders import encode


class Tables:
    """Three entries that agree: request 1 refers to a and b, nobody to c."""

    def __init__(self) -> None:
        self.a, self.b = EncoderEntry("a", "a", 4, 1), EncoderEntry("b", "b", 5, 1)
        self.c = EncoderEntry("c", "c", 3, 0)
        self.table = {"a": self.a, "b": self.b, "c": self.c}
        self.evictable = {"c": self.c}
        self.held = {1: {0: self.a, 1: self.b}}
        self.reserved = [self.b]

    def check(self) -> None:
        check_entries(self.table, self.evictable, self.held, self.reserved)


CONTRADICTIONS: dict[str, Callable[[Tables], object]] = {
    "has 0 reference": lambda tables: tables.held[1].pop(0),
    "request 1 is listed without references": lambda tables: tables.held[1].clear(),
    "has 1 reference": lambda tables: setattr(tables.a, "num_references", 2),
    "'a'.*evictable entries are those of this epoch": lambda tables: tables.evictable.update(a=tables.a),
    "'c'.*evictable entries are those of this epoch": lambda tables: tables.evictable.pop("c"),
    "is old and in the table": lambda tables: setattr(tables.c, "is_old", True),
    "the same key": lambda tables: setattr(tables.b, "key", "a"),
    "evictable, but not in the table: {'z'}": lambda tables: tables.evictable.update(z=EncoderEntry("z", "z", 0, 0)),
    "reserved without reference": lambda tables: tables.reserved.append(tables.c),
    "item 0 of request 1 refers to .* which is gone": lambda tables: tables.table.pop("a"),
}


@pytest.mark.parametrize("complaint", CONTRADICTIONS)
def test_tables_that_contradict_each_other_say_so(complaint: str) -> None:
    tables = Tables()
    tables.check()
    CONTRADICTIONS[complaint](tables)
    with pytest.raises(InvariantError, match=complaint):
        tables.check()


@pytest.mark.parametrize(
    ("num_free", "num_freeable", "complaint"),
    [(17, 16, "17 free . 4 used are not 20"), (16, 17, "17 freeable: not 16 free . 0 idle")],
)
def test_counts_that_contradict_the_entries_say_so(num_free: int, num_freeable: int, complaint: str) -> None:
    manager = SharedEncoderCacheManager(20)
    manager.allocate(encode(1, ("a", 4)), 0)
    manager.check_integrity()
    manager.num_free_slots, manager.num_freeable_slots = num_free, num_freeable
    with pytest.raises(InvariantError, match=complaint):
        manager.check_integrity()


class LosesItsStep(SharedEncoderCacheManager):
    def lose_step(self) -> None:
        self._step.commit(0)


def test_a_reservation_without_a_step_says_so() -> None:
    manager = LosesItsStep(20)
    manager.begin_step(0)
    manager.allocate(encode(1, ("a", 4)), 0)
    manager.lose_step()
    with pytest.raises(InvariantError, match="without a step"):
        manager.check_integrity()
