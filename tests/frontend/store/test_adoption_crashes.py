"""The frontend's store is killed at each point of a put, an eviction, a flush and an adoption.

Its successor, in this process, has what it should have. Two readers of this process live through it: one holds a
record, one looks all the time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from mmcached.cache.store_keys import store_key
from mmcached.shm import sweep
from mmcached.shm.crash_points import SUCCESSOR_LABELS, VARIABLE, WRITER_LABELS
from mmcached.shm.segment.layout import SLOT_WORDS
from mmcached.shm.segment.mapped import layout_of
from mmcached.wire.errors import SegmentError
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.frontend.dying_store import Keeper
from tests.shm.processes import Child, Died
from tests.shm.rings import overwritten
from tests.shm.seekers import Seeker

NUM_PUTS = 30
"""Enough for two laps."""
LATE = NUM_PUTS - 3
TENANTS = ("", "other")
HELD = "0"
REPLACED = 200

OF_A_PUT = [f"{label}:{LATE}" for label in WRITER_LABELS if label.startswith("put.") and label != "put.mid_payload"]
DEATHS = {
    **dict.fromkeys([*OF_A_PUT, f"put.mid_payload:{2 * LATE}"], "put"),
    **{f"put.after_index:{LATE}": "put", f"evict.after_erase:{LATE}": "put", "evict.after_retire:4": "put"},
    "index.moved:1": "put",
    "index.moved:4": "put",
    "replace.before_index:1": "replace",
    "replace.after_index:1": "replace",
    "discard.after_retire:1": "replace",
    "discard.after_retire:2": "drop",
    "discard.after_retire:5": "flush",
    "flush.after_floor:1": "flush",
    "flush.before_epoch:1": "flush",
}
"""Where it dies -> the command that stays without an answer."""
ADOPTIONS = [label for label in SUCCESSOR_LABELS if label.startswith("adopt.") and label != "adopt.before_removal"]


def test_each_point_is_taken() -> None:
    taken = {death.partition(":")[0] for death in DEATHS} | {*ADOPTIONS, "adopt.before_removal"}
    assert taken == {
        *(label for label in SUCCESSOR_LABELS if not label.startswith(("promote.", "nursery."))),
        *(label for label in WRITER_LABELS if label.startswith("put.")),
    }


def dying(crash_at: str) -> Child:
    return Child("tests.frontend.dying_store", environment={VARIABLE: crash_at})


class Witness:
    """What the writer has said, and the two readers.

    Attributes:
        kept: key -> value of each record whose put was answered, and that was not dropped or flushed.
        doubtful: those of them that the last command, which was not answered, may have taken away.
    """

    def __init__(self, announcement: RingAnnouncement) -> None:
        self.announcement = announcement
        self.holder, self.looker = Seeker(announcement), Seeker(announcement)
        self.kept: dict[tuple[str, str], int] = {}
        self.doubtful: set[tuple[str, str]] = set()
        self.new: tuple[tuple[str, str], int] | None = None
        self._held: Handle | None = None

    def play(self, ask: Callable[..., Any]) -> None:
        """Let the writer live its life, as far as it comes."""
        for seeker in (self.holder, self.looker):
            assert ask("attach", seeker.entry.reader_id, seeker.entry.incarnation)
        for value in range(NUM_PUTS):
            self.put(ask, value)
            if self._held is None:
                self._held = self.holder.take(store_key(*self.name(value)))
        self.replace(ask)
        self.drop(ask)
        self.put(ask, NUM_PUTS)
        self.doubtful = set(self.kept)
        ask("flush")
        self.kept, self.doubtful = {}, set()

    @staticmethod
    def name(value: int) -> tuple[str, str]:
        """Return tenant and key."""
        return TENANTS[value % 2], str(value)

    def put(self, ask: Callable[..., Any], value: int) -> None:
        self.new = self.name(value), value
        assert ask("put", *self.name(value), value)
        self.new = None
        self.kept[self.name(value)] = value
        self.forget_evicted()

    def forget_evicted(self) -> None:
        for name in [name for name in self.kept if self.looker.look(store_key(*name)) is None]:
            del self.kept[name]

    def replace(self, ask: Callable[..., Any]) -> None:
        name = next(iter(self.kept))
        self.new = name, REPLACED
        assert ask("replace", *name, REPLACED)
        self.new = None
        self.kept[name] = REPLACED
        self.forget_evicted()

    def drop(self, ask: Callable[..., Any]) -> None:
        victim = next(reversed(self.kept))
        self.doubtful = {victim}
        assert ask("drop", *victim)
        self.doubtful = set()
        del self.kept[victim]

    def look(self) -> set[tuple[str, str]]:
        """Return what is found; all of it must be right."""
        new = dict([self.new] if self.new else [])
        found = {name: self.looker.look(store_key(*name)) for name in {**self.kept, **new}}
        assert all(value in (None, self.kept.get(name), new.get(name)) for name, value in found.items())
        assert self.holder_value() == 0
        return {name for name, value in found.items() if value is not None}

    def holder_value(self) -> int:
        assert self._held is not None
        return self.holder.value(self._held)

    def give_back(self) -> None:
        assert self._held is not None
        self.holder.entry.give_back(self._held)

    def close(self) -> None:
        self.holder.close()
        self.looker.close()


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    sweep()


def die(undo: ExitStack, crash_at: str) -> Witness:
    """Let a store die at a point; return who saw it."""
    child = undo.enter_context(dying(crash_at))
    witness = Witness(msgspec.convert(child.ask("create"), RingAnnouncement))
    undo.callback(witness.close)
    with pytest.raises(Died, match=DEATHS[crash_at]):
        witness.play(child.ask)
    assert child.exit_code() == -signal.SIGKILL
    return witness


def succeed(undo: ExitStack, announcement: RingAnnouncement) -> Keeper:
    keeper = Keeper()
    undo.callback(keeper.store.close)
    keeper.adopt(announcement)
    return keeper


def go_on(keeper: Keeper, witness: Witness) -> None:
    """Nothing that nobody reads is in the way, and what is read stays."""
    assert keeper.stats().leases == 1
    for value in range(100, 100 + 2 * NUM_PUTS):
        assert keeper.put("", str(value), value)
        assert witness.looker.look(store_key("", str(value))) == value
    assert witness.holder_value() == 0
    witness.give_back()
    assert (keeper.stats().leases, keeper.stats().pinned_bytes) == (0, 0)


@pytest.mark.parametrize("crash_at", DEATHS)
def test_whatever_the_store_is_doing_its_successor_has_what_was_committed(undo: ExitStack, crash_at: str) -> None:
    witness = die(undo, crash_at)
    meanwhile = witness.look()
    keeper = succeed(undo, witness.announcement)
    after = witness.look()
    lost = witness.kept.keys() - after - witness.doubtful
    assert len(lost) <= (DEATHS[crash_at] in ("put", "replace")), "but for the one that was just being evicted"
    assert meanwhile <= after | witness.doubtful, "what was hit while nobody ran is hit"
    assert keeper.stats().chunks == len(after)
    if crash_at.startswith("put.after"):
        assert (witness.new is not None and witness.new[0] in after) is ("evict" not in crash_at)
    if DEATHS[crash_at] == "replace":
        assert witness.new is not None
        assert witness.new[0] in meanwhile, "the old record or the new one is found at every moment"
        assert witness.looker.look(store_key(*witness.new[0])) == REPLACED
    if DEATHS[crash_at] == "flush":
        assert after == set(), "flushed or not at all: its floor was set before anything went"
    assert keeper.store.epoch == 1000
    go_on(keeper, witness)


@pytest.mark.parametrize("label", ADOPTIONS)
def test_a_successor_that_dies_in_the_middle_has_a_successor(undo: ExitStack, label: str) -> None:
    first = Keeper()
    witness = Witness(first.create())
    undo.callback(witness.close)
    with pytest.raises(Died):
        witness.play(lambda *command: stop_at_flush(first, *command))
    first.ring().board.raise_floor()  # as far as the flush came
    kept = first.put("", "after", 77)
    first.die()
    child = undo.enter_context(dying(label))
    with pytest.raises(Died, match="adopt"):
        child.ask("adopt", witness.announcement)
    assert child.exit_code() == -signal.SIGKILL
    assert witness.looker.look(store_key("", "after")) == 77
    keeper = succeed(undo, witness.announcement)
    assert kept
    assert witness.look() == set()
    assert witness.looker.look(store_key("", "after")) == 77
    assert keeper.stats().chunks == 1
    go_on(keeper, witness)


def stop_at_flush(keeper: Keeper, name: str, *arguments: Any) -> Any:
    if name == "flush":
        raise Died(name)
    return getattr(keeper, name)(*arguments)


def test_a_successor_that_dies_while_it_removes_what_it_cannot_adopt_leaves_the_readers_alone(undo: ExitStack) -> None:
    first = Keeper()
    witness = Witness(first.create())
    undo.callback(witness.close)
    with pytest.raises(Died):
        witness.play(lambda *command: stop_at_flush(first, *command))
    first.die()
    names = witness.announcement
    with overwritten(names.data_name) as words:
        slots = layout_of(names).slots_offset // 8
        words[slots + SLOT_WORDS + 1] = words[slots + 1]  # two in one place
    child = undo.enter_context(dying("adopt.before_removal"))
    with pytest.raises(Died, match="adopt"):
        child.ask("adopt", names)
    assert child.exit_code() == -signal.SIGKILL
    for reason in ("contradicts itself", "is gone"):
        with pytest.raises(SegmentError, match=reason):
            succeed(undo, names)
    assert witness.holder_value() == 0
    assert witness.look() == set()


def test_what_a_reader_held_that_died_with_the_writer_is_free(undo: ExitStack) -> None:
    witness = die(undo, f"put.after_commit:{LATE}")
    witness.holder.close()
    keeper = succeed(undo, witness.announcement)
    assert (keeper.stats().leases, keeper.stats().pinned_bytes) == (0, 0)
