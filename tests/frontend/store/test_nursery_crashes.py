"""The frontend's store is killed at each point of what it does with nurseries; so is its successor.

Two readers of this process live through it: one holds a record in a nursery, one looks all the time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from mmcached.cache.store_keys import store_key
from mmcached.client.store import nursery
from mmcached.shm import sweep
from mmcached.shm.crash_points import SUCCESSOR_LABELS, VARIABLE
from mmcached.shm.segment.mapped import SHM_DIR
from mmcached.shm.segment.nursery_files import nurseries_of
from mmcached.wire.handle import Handle, RingAnnouncement
from tests.client.store.at_once import AtOnce
from tests.frontend.dying_nurseries import Store
from tests.shm.processes import Child, Died
from tests.shm.seekers import Seeker

FIRST_COPY, FIRST_EVICTION, NUM_PUTS = 8, 34, 40
"""Puts after which a record has to be copied into the ring, and after which one has to go."""
HELD = "1"
LONE = "lone"
"""A record that is the only one in its nursery, whose client is gone."""
DEATHS = [
    *((f"{label}:1", "0") for label in ("nursery.after_create", "put.before_publish", "put.after_commit")),
    *((f"promote.{label}:1", f"{FIRST_COPY}") for label in ("after_claim", "before_commit")),
    *((f"{label}:2", f"{FIRST_COPY}") for label in ("replace.before_index", "replace.after_index")),
    *((f"{label}:3", f"{FIRST_COPY}") for label in ("put.after_commit", "discard.after_retire")),
    *((f"evict.{label}:2", f"{FIRST_EVICTION}") for label in ("after_retire", "after_erase")),
    ("discard.after_retire:1", "replace"),
    *((f"{label}:1", LONE) for label in ("discard.after_retire", "nursery.before_unlink")),
    ("flush.after_floor:1", "flush"),
]
"""Where it dies, and from when on."""
ADOPTIONS = [
    *(label for label in SUCCESSOR_LABELS if label.startswith("adopt.") and label != "adopt.before_removal"),
    "nursery.before_unlink",
]


def test_each_point_of_nurseries_is_taken() -> None:
    taken = {crash_at.partition(":")[0] for crash_at, _ in DEATHS}
    assert {label for label in SUCCESSOR_LABELS if label.startswith(("promote.", "nursery."))} <= taken


class Witness:
    """What the store has said, and the two readers.

    Attributes:
        kept: key -> value of each record whose put was answered, and that is still found.
        doubtful: key -> value, or None for none, that the last command may have left there.
    """

    def __init__(self, child: Child) -> None:
        self.child = child
        self.announcement = msgspec.convert(child.ask("announcement"), RingAnnouncement)
        self.holder, self.looker = Seeker(self.announcement), Seeker(self.announcement)
        for seeker in (self.holder, self.looker):
            assert child.ask("attach", seeker.entry.reader_id, seeker.entry.incarnation)
        self.kept: dict[str, int] = {}
        self.doubtful: dict[str, int | None] = {}
        self._held: Handle | None = None

    def live(self, crash_at: str, moment: str) -> None:
        """Let the store live its life, as far as it comes."""
        for value in range(NUM_PUTS):
            self._arm(crash_at, moment == f"{value}")
            self._put(f"{value}", value)
            if f"{value}" == HELD:
                self._held = self.holder.take(store_key("", HELD))
            self.child.ask("get", "0")
        self._arm(crash_at, moment == "replace")
        self._put(next(reversed(self.kept)), 200, overwrites=True)
        self.child.ask("leave")
        self._put(LONE, 201)
        self.child.ask("leave")
        self._arm(crash_at, moment == LONE)
        self.doubtful = {LONE: None}
        self.child.ask("drop", LONE)
        del self.kept[LONE]
        self._arm(crash_at, moment == "flush")
        self.doubtful = dict.fromkeys(self.kept)
        self.child.ask("flush")

    def _arm(self, crash_at: str, is_now: bool) -> None:
        if is_now:
            self.child.ask("arm", crash_at)

    def _put(self, key: str, value: int, *, overwrites: bool = False) -> None:
        self.doubtful = {key: value}
        assert self.child.ask("put", key, value, overwrites), "it lies in the nursery"
        self.doubtful = {}
        self.kept = {name: value for name, value in (self.kept | {key: value}).items() if self._finds(name)}

    def _finds(self, key: str) -> bool:
        return self.looker.finds(store_key("", key))

    def look(self) -> set[str]:
        """Return what is found; all of it must be right."""
        found = {key: self.looker.look(store_key("", key)) for key in self.kept | self.doubtful}
        for key, value in found.items():
            assert value is None or value in (self.kept.get(key), self.doubtful.get(key)), key
        self.check_held()
        return {key for key, value in found.items() if value is not None}

    def check_held(self) -> None:
        if self._held is not None:
            assert self.holder.value(self._held) == int(HELD)

    def give_back(self) -> None:
        if self._held is not None:
            self.holder.entry.give_back(self._held)

    def close(self) -> None:
        self.holder.close()
        self.looker.close()


@pytest.fixture(autouse=True)
def populated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "Populator", AtOnce)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
    sweep()


def start(undo: ExitStack, home: Path, crash_at: str = "") -> Child:
    environment = {VARIABLE: crash_at} if crash_at else {}
    return undo.enter_context(Child("tests.frontend.dying_nurseries", str(home), environment=environment))


def die(undo: ExitStack, home: Path, crash_at: str, moment: str) -> Witness:
    """Let a store die at a point; return who saw it."""
    child = start(undo, home)
    witness = Witness(child)
    undo.callback(witness.close)
    with pytest.raises(Died):
        witness.live(crash_at, moment)
    assert child.exit_code() == -signal.SIGKILL
    return witness


def succeed(undo: ExitStack, home: Path, witness: Witness) -> Store:
    store = Store(home)
    undo.callback(store.close)
    assert store.announcement() == witness.announcement
    store.service.check_integrity()
    return store


def check_files(store: Store) -> None:
    """Each nursery has a record, and each that is drained has memory for its records alone."""
    names = store.announcement()
    assert nurseries_of(names) == sorted(one.nursery for one in store.service.nurseries.books)
    for number, num_bytes in store.files():
        num_blocks = os.stat(SHM_DIR / names.nursery_name(number)[1:]).st_blocks
        assert 0 < num_blocks * 512 <= num_bytes + 2 * 4096 * len(store.ring.placed.places())


def go_on(store: Store, witness: Witness) -> None:
    """Nothing that nobody reads is in the way, and what is read stays."""
    for number in range(NUM_PUTS):
        store.put(f"later {number}", number)
        assert witness.looker.look(store_key("", f"later {number}")) == number
    witness.check_held()
    witness.give_back()
    store.flush()
    store.leave()
    assert (store.stats().leases, store.stats().pinned_bytes) == (0, 0)
    assert nurseries_of(store.announcement()) == []


@pytest.mark.parametrize(("crash_at", "moment"), DEATHS)
def test_whatever_the_store_is_doing_its_successor_has_what_was_put(
    undo: ExitStack, tmp_path: Path, crash_at: str, moment: str
) -> None:
    witness = die(undo, tmp_path, crash_at, moment)
    meanwhile = witness.look()
    store = succeed(undo, tmp_path, witness)
    after = witness.look()
    assert meanwhile <= after | witness.doubtful.keys(), "what was hit while nobody ran is hit"
    lost = witness.kept.keys() - after - witness.doubtful.keys()
    assert len(lost) <= (crash_at.startswith("evict")), "but for the one that was just being evicted"
    if moment == "replace":
        assert witness.doubtful.keys() <= meanwhile & after, "the old record or the new one is found at every moment"
    if moment == "flush":
        assert after == set(), "flushed: the floor was raised before anything went"
    check_files(store)
    go_on(store, witness)


@pytest.mark.parametrize("label", ADOPTIONS)
def test_a_successor_that_dies_in_the_middle_has_a_successor(undo: ExitStack, tmp_path: Path, label: str) -> None:
    witness = die(undo, tmp_path, "discard.after_retire:1", LONE)
    before = witness.look()
    child = start(undo, tmp_path, label)
    with pytest.raises(Died):
        child.ask("announcement")
    assert child.exit_code() == -signal.SIGKILL
    assert witness.look() == before
    store = succeed(undo, tmp_path, witness)
    assert witness.look() == before
    check_files(store)
    go_on(store, witness)
